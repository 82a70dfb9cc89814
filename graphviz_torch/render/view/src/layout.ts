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
  /** Left and top of each box, within the level, in the order of the task's boxes. */
  at: [number, number][];
  /** Points of each link, x and y in turn, in the order of the task's links. */
  paths: number[][];
  /** Links that are drawn as bows, with the control points of one curve for points. */
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

// dagre puts a box on every rank that an edge crosses, which takes time and widens the picture. Where
// more edges than this pass a rank, the longest are drawn as bows at the side instead.
const MOST_PASSING = 5;
const MOST_PORT_EDGES = 6;
const MOST_LOOSE = 4;
const GAP = 22;
const RANK_GAP = 34;
const PORT_GAP = 12; // between the frame's edge and the first or last rank
const ENTRY = "entry";
const EXIT = "exit";

export function layout(): (tasks: Task[]) => Placed[] {
  // Equal blocks have equal layouts: each is made once.
  const known = new Map<string, Placed>();
  return (tasks) => {
    const levels = new Map<number, Placed>();
    for (const task of tasks) {
      const boxes = task.boxes.map((box) => measured(box, levels, task));
      const sketch = outline(task, boxes);
      const placed = known.get(sketch) ?? arrange(task, boxes);
      known.set(sketch, placed);
      levels.set(task.level, { ...placed, level: task.level });
    }
    return [...levels.values()];
  };
}

function measured(box: Box, levels: ReadonlyMap<number, Placed>, task: Task): Area {
  const inner = box.width ? undefined : (levels.get(box.item) ?? task.known?.find((level) => level.level === box.item));
  return inner ? { ...box, width: inner.width, height: inner.height, inner } : { ...box, inner };
}

/** All that a layout depends on, without the items' numbers. */
function outline({ links, entries, exits, header, padding }: Task, boxes: readonly Area[]): string {
  const at = new Map(boxes.map(({ item }, position) => [item, position]));
  const sizes = boxes.map(({ width, height, inner }) => [width, height, inner?.entry, inner?.exit]);
  const ends = links.map(([from, to]) => [at.get(from), at.get(to)]);
  return JSON.stringify([sizes, ends, entries.map((item) => at.get(item)), exits.map((item) => at.get(item)), header, padding]);
}

function arrange(task: Task, boxes: readonly Area[]): Placed {
  const linked = new Set([...task.links.flat(), ...task.entries, ...task.exits]);
  const loose = boxes.filter((box) => !linked.has(box.item));
  const tied = loose.length > MOST_LOOSE ? boxes.filter((box) => linked.has(box.item)) : boxes;

  const placed: Placed = {
    level: task.level,
    width: 0,
    height: 0,
    at: [],
    paths: [],
    far: [],
    entryPaths: [],
    exitPaths: [],
    entry: null,
    exit: null,
  };
  const at = new Map<number, [number, number]>();
  if (tied.length) inRanks(task, tied, placed, at);
  if (tied.length < boxes.length) inRows(loose, placed, at);
  placed.at = boxes.map(({ item }) => at.get(item) as [number, number]);
  frame(placed, task.header, task.padding);
  return placed;
}

function inRanks(task: Task, boxes: readonly Area[], placed: Placed, at: Map<number, [number, number]>): void {
  const entries = task.entries.length <= MOST_PORT_EDGES ? task.entries : [];
  const exits = task.exits.length <= MOST_PORT_EDGES ? task.exits : [];
  const far = (placed.far = farLinks(boxes, task.links));

  const graph = new Graph();
  graph.setGraph({ nodesep: GAP, edgesep: 14, ranksep: RANK_GAP, ranker: boxes.length > 150 ? "tight-tree" : "network-simplex" });
  for (const { item, width, height } of boxes) graph.setNode(String(item), { width, height });
  task.links.forEach(([from, to], link) => {
    if (!far[link]) graph.setEdge(String(from), String(to), {});
  });
  if (entries.length) graph.setNode(ENTRY, { width: 1, height: 1 });
  if (exits.length) graph.setNode(EXIT, { width: 1, height: 1 });
  for (const item of entries) graph.setEdge(ENTRY, String(item), {});
  for (const item of exits) graph.setEdge(String(item), EXIT, {});
  place(graph);

  // A port takes a rank of its own, of which little is needed where no item shares it.
  const size = graph.graph() as { width: number; height: number };
  const tops = boxes.map(({ item, height }) => (graph.node(String(item)) as Centred).y - height / 2);
  const ends = boxes.map(({ item, height }) => size.height - (graph.node(String(item)) as Centred).y - height / 2);
  const spare = RANK_GAP - PORT_GAP;
  const above = entries.length ? Math.min(spare, ...tops) : 0;
  const height = (placed.height = size.height - above - (exits.length ? Math.min(spare, ...ends) : 0));
  placed.width = size.width;
  const within = (y: number) => Math.max(0, Math.min(height, y - above));
  const centre = (name: string): Centred => {
    const box = graph.node(name) as Centred;
    return { ...box, y: box.y - above };
  };
  const inner = new Map(boxes.map((box) => [String(box.item), box.inner]));
  for (const { item } of boxes) {
    const box = centre(String(item));
    at.set(item, [box.x - box.width / 2, box.y - box.height / 2]);
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
  const bow = (from: string, to: string): number[] => {
    const [a, b] = [centre(from), centre(to)];
    const out = Math.max(a.x + a.width / 2, b.x + b.width / 2) + Math.min(30 + Math.abs(b.y - a.y) / 6, 240);
    placed.width = Math.max(placed.width, out);
    return [a.x + a.width / 2, a.y, out, a.y, out, b.y, b.x + b.width / 2, b.y];
  };
  const path = (from: string, to: string): number[] => {
    const { points } = graph.edge(from, to) as { points: Centred[] };
    return [...start(from), ...points.slice(1, -1).flatMap(({ x, y }) => [x, within(y)]), ...end(to)];
  };
  placed.paths = task.links.map(([from, to], link) => (far[link] ? bow : path)(String(from), String(to)));
  placed.entryPaths = entries.map((item) => path(ENTRY, String(item)));
  placed.exitPaths = exits.map((item) => path(String(item), EXIT));
}

/** Which links to draw as bows, so that few others pass any rank. */
function farLinks(boxes: readonly Area[], links: Task["links"]): boolean[] {
  const rank = new Map(boxes.map((box) => [box.item, 0]));
  const position = new Map(boxes.map((box, at) => [box.item, at]));
  const of = (item: number) => rank.get(item) as number;
  const forward = links.filter(([from, to]) => (position.get(from) as number) < (position.get(to) as number));
  forward.sort((a, b) => (position.get(a[0]) as number) - (position.get(b[0]) as number));
  for (const [from, to] of forward) rank.set(to, Math.max(of(to), of(from) + 1));

  const passing = new Int32Array(boxes.length + 1);
  const far = links.map(() => false);
  const span = ([from, to]: [number, number]) => of(to) - of(from);
  const shortest = [...links.keys()].sort((a, b) => span(links[a] as [number, number]) - span(links[b] as [number, number]));
  for (const at of shortest) {
    const [from, to] = links[at] as [number, number];
    const crossed = passing.subarray(of(from) + 1, Math.max(of(from) + 1, of(to)));
    if (crossed.every((edges) => edges < MOST_PASSING)) crossed.forEach((edges, rank) => (crossed[rank] = edges + 1));
    else far[at] = true;
  }
  return far;
}

/** Items without edges, below the others, in rows about as wide as they are high together. */
function inRows(boxes: readonly Area[], placed: Placed, at: Map<number, [number, number]>): void {
  const area = boxes.reduce((sum, box) => sum + (box.width + GAP) * (box.height + GAP), 0);
  const most = Math.max(placed.width, 1.4 * Math.sqrt(area), ...boxes.map((box) => box.width));
  let [x, y, row] = [0, placed.height && placed.height + GAP, 0];
  for (const box of boxes) {
    if (x > 0 && x + box.width > most) [x, y, row] = [0, y + row + GAP, 0];
    at.set(box.item, [x, y]);
    x += box.width + GAP;
    row = Math.max(row, box.height);
    placed.width = Math.max(placed.width, x - GAP);
    placed.height = y + row;
  }
}

/** Make room for the frame around a level. Edges from outside begin and end on the frame itself. */
function frame(placed: Placed, header: number, padding: number): void {
  const top = header + padding;
  const xs = [...placed.paths, ...placed.entryPaths, ...placed.exitPaths].flatMap((path) => path.filter((_, at) => at % 2 === 0));
  const left = padding - Math.min(0, ...xs); // dagre lets edges pass beside the outermost items
  const shift = (path: number[]) => path.map((value, at) => value + (at % 2 ? top : left));
  placed.at = placed.at.map(([x, y]) => [x + left, y + top]);
  placed.width = left + Math.max(placed.width, ...xs) + padding;
  placed.height += top + padding;
  placed.paths = placed.paths.map(shift);
  placed.entryPaths = placed.entryPaths.map(shift).map((path) => [path[0] ?? 0, 0, ...path]);
  placed.exitPaths = placed.exitPaths.map(shift).map((path) => [...path, path.at(-2) ?? 0, placed.height]);
  if (placed.entry !== null) placed.entry += left;
  if (placed.exit !== null) placed.exit += left;
}
