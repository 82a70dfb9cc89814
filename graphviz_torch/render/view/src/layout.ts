// Places the items of levels, each level alone with its inner levels as boxes. Runs in a worker.

import { Graph, layout as place } from "@dagrejs/dagre";

export interface Box {
  readonly item: number;
  /** Of an open group 0: it is as large as its level, which came before. */
  readonly width: number;
  readonly height: number;
}

export interface Task {
  readonly level: number;
  readonly boxes: Box[];
  readonly links: [number, number][];
  readonly entries: number[];
  readonly exits: number[];
  /** Space around the items, for the frame of the level. */
  readonly header: number;
  readonly padding: number;
  /** Open groups inside that were laid out before. */
  readonly known?: Placed[];
}

export interface Placed {
  readonly level: number;
  width: number;
  height: number;
  /** Left and top of each item, within the level. */
  readonly at: Map<number, [number, number]>;
  /** Points of each link, x and y in turn, in the order of the task's links. */
  paths: number[][];
  /** Links that are drawn straight, because so many ranks lie between their ends. */
  far: boolean[];
  entryPaths: number[][];
  exitPaths: number[][];
  /** Where edges from outside arrive and leave: x within the level. */
  entry: number | null;
  exit: number | null;
}

interface Area extends Box {
  readonly inner: Placed | undefined;
}

interface Centred {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

// dagre puts a box on every rank that an edge crosses. More of them than this are not worth waiting
// for: the longest edges are drawn straight instead.
const MOST_CROSSINGS = 600;
const MOST_PORT_EDGES = 6;
const MOST_LOOSE = 4;
const GAP = 22;
const RANK_GAP = 34;
const PORT_GAP = 12; // between the frame's edge and the first or last rank
const ENTRY = "entry";
const EXIT = "exit";

export function layout(): (tasks: Task[]) => Placed[] {
  return (tasks) => {
    const levels = new Map<number, Placed>();
    for (const task of tasks) levels.set(task.level, arrange(task, levels));
    return [...levels.values()];
  };
}

function arrange(task: Task, levels: ReadonlyMap<number, Placed>): Placed {
  const boxes = task.boxes.map((box): Area => {
    const inner = box.width ? undefined : levels.get(box.item) ?? task.known?.find((level) => level.level === box.item);
    return inner ? { ...box, width: inner.width, height: inner.height, inner } : { ...box, inner };
  });
  const linked = new Set([...task.links.flat(), ...task.entries, ...task.exits]);
  const loose = boxes.filter((box) => !linked.has(box.item));
  const tied = loose.length > MOST_LOOSE ? boxes.filter((box) => linked.has(box.item)) : boxes;

  const placed: Placed = {
    level: task.level,
    width: 0,
    height: 0,
    at: new Map(),
    paths: [],
    far: [],
    entryPaths: [],
    exitPaths: [],
    entry: null,
    exit: null,
  };
  if (tied.length) inRanks(task, tied, placed);
  if (tied.length < boxes.length) inRows(loose, placed);
  frame(placed, task.header, task.padding);
  return placed;
}

function inRanks(task: Task, boxes: readonly Area[], placed: Placed): void {
  const entries = task.entries.length <= MOST_PORT_EDGES ? task.entries : [];
  const exits = task.exits.length <= MOST_PORT_EDGES ? task.exits : [];
  const far = (placed.far = farLinks(boxes, task.links));

  const graph = new Graph();
  graph.setGraph({ nodesep: GAP, edgesep: 14, ranksep: RANK_GAP, ranker: boxes.length > 150 ? "tight-tree" : "network-simplex" });
  for (const { item, width, height } of boxes) graph.setNode(String(item), { width, height });
  task.links.forEach(([from, to], at) => {
    if (!far[at]) graph.setEdge(String(from), String(to), {});
  });
  if (entries.length) graph.setNode(ENTRY, { width: 1, height: 1 });
  if (exits.length) graph.setNode(EXIT, { width: 1, height: 1 });
  for (const item of entries) graph.setEdge(ENTRY, String(item), {});
  for (const item of exits) graph.setEdge(String(item), EXIT, {});
  place(graph);

  // A port takes a rank of its own, of which little is needed.
  const above = entries.length ? RANK_GAP - PORT_GAP : 0;
  const size = graph.graph() as { width: number; height: number };
  const height = (placed.height = size.height - above - (exits.length ? RANK_GAP - PORT_GAP : 0));
  placed.width = size.width;
  const within = (y: number) => Math.max(0, Math.min(height, y - above));
  const centre = (name: string): Centred => {
    const box = graph.node(name) as Centred;
    return { ...box, y: box.y - above };
  };
  const inner = new Map(boxes.map((box) => [String(box.item), box.inner]));
  for (const { item } of boxes) {
    const box = centre(String(item));
    placed.at.set(item, [box.x - box.width / 2, box.y - box.height / 2]);
  }
  if (entries.length) placed.entry = centre(ENTRY).x;
  if (exits.length) placed.exit = centre(EXIT).x;

  // An edge leaves from the middle of a box's lower side, or from where an open group lets it out.
  const start = (name: string): number[] => {
    const box = centre(name);
    if (name === ENTRY) return [box.x, 0];
    const port = inner.get(name)?.exit ?? box.width / 2;
    return [box.x - box.width / 2 + port, box.y + box.height / 2];
  };
  const end = (name: string): number[] => {
    const box = centre(name);
    if (name === EXIT) return [box.x, height];
    const port = inner.get(name)?.entry ?? box.width / 2;
    return [box.x - box.width / 2 + port, box.y - box.height / 2];
  };
  const path = (from: string, to: string, straight = false): number[] => {
    const { points } = (straight ? { points: [] } : graph.edge(from, to)) as { points: Centred[] };
    return [...start(from), ...points.slice(1, -1).flatMap(({ x, y }) => [x, within(y)]), ...end(to)];
  };
  placed.paths = task.links.map(([from, to], at) => path(String(from), String(to), far[at]));
  placed.entryPaths = entries.map((item) => path(ENTRY, String(item)));
  placed.exitPaths = exits.map((item) => path(String(item), EXIT));
}

/** Which links to leave to a straight line, so that few ranks are crossed by the others. */
function farLinks(boxes: readonly Area[], links: Task["links"]): boolean[] {
  const rank = new Map(boxes.map((box) => [box.item, 0]));
  const position = new Map(boxes.map((box, at) => [box.item, at]));
  const of = (item: number) => rank.get(item) as number;
  const forward = links.filter(([from, to]) => (position.get(from) as number) < (position.get(to) as number));
  forward.sort((a, b) => (position.get(a[0]) as number) - (position.get(b[0]) as number));
  for (const [from, to] of forward) rank.set(to, Math.max(of(to), of(from) + 1));

  const crossed = links.map(([from, to]) => Math.max(0, of(to) - of(from) - 1));
  let total = crossed.reduce((sum, ranks) => sum + ranks, 0);
  const far = links.map(() => false);
  const longest = links.map((_, at) => at).sort((a, b) => (crossed[b] as number) - (crossed[a] as number));
  for (const at of longest) {
    if (total <= MOST_CROSSINGS) break;
    total -= crossed[at] as number;
    far[at] = true;
  }
  return far;
}

/** Items without edges, below the others, in rows about as wide as they are high together. */
function inRows(boxes: readonly Area[], placed: Placed): void {
  const area = boxes.reduce((sum, box) => sum + (box.width + GAP) * (box.height + GAP), 0);
  const most = Math.max(placed.width, 1.4 * Math.sqrt(area), ...boxes.map((box) => box.width));
  let [x, y, row] = [0, placed.height && placed.height + GAP, 0];
  for (const box of boxes) {
    if (x > 0 && x + box.width > most) [x, y, row] = [0, y + row + GAP, 0];
    placed.at.set(box.item, [x, y]);
    x += box.width + GAP;
    row = Math.max(row, box.height);
    placed.width = Math.max(placed.width, x - GAP);
    placed.height = y + row;
  }
}

/** Make room for the frame around a level. Edges from outside begin and end on the frame itself. */
function frame(placed: Placed, header: number, padding: number): void {
  const top = header + padding;
  const shift = (path: number[]) => path.map((value, at) => value + (at % 2 ? top : padding));
  for (const [item, [x, y]] of placed.at) placed.at.set(item, [x + padding, y + top]);
  placed.width += 2 * padding;
  placed.height += top + padding;
  placed.paths = placed.paths.map(shift);
  placed.entryPaths = placed.entryPaths.map(shift).map((path) => [path[0] ?? 0, 0, ...path]);
  placed.exitPaths = placed.exitPaths.map(shift).map((path) => [...path, path.at(-2) ?? 0, placed.height]);
  if (placed.entry !== null) placed.entry += padding;
  if (placed.exit !== null) placed.exit += padding;
}
