// Lay out levels, each separately, with its inner levels as boxes. This file runs in a worker.

import { inChains } from "./chains";
import { farLinks } from "./far";
import { cut, join } from "./pieces";
import { type Area, GAP, type Piece, type Ranks } from "./ranks";

export interface Box {
  readonly item: number;
  /** Width of the box; 0 for an open group, whose size is that of its level, which is laid out before. */
  readonly width: number;
  readonly height: number;
}

export interface Task {
  readonly level: number;
  readonly boxes: Box[];
  readonly links: [number, number][];
  readonly entries: number[];
  readonly exits: number[];
  /** Margin around the items, for the level's frame. */
  readonly header: number;
  readonly padding: number;
  /** Height of the frame's title. */
  readonly leastWidth: number;
  /** The open groups inside the level, which are laid out already. */
  readonly known?: Placed[];
}

export interface Placed {
  readonly level: number;
  width: number;
  height: number;
  /** Left and top of each box in the level, in the order of the task's boxes. */
  at: [number, number][];
  /** Points of each link, x and y in turn, in the order of the task's links. */
  paths: number[][];
  /** Links that are drawn as bows; their points are the control points of one curve. */
  far: boolean[];
  entryPaths: number[][];
  exitPaths: number[][];
  /** x in the level at which edges from outside enter and leave. */
  entry: number | null;
  exit: number | null;
}

const MOST_PORT_EDGES = 6;
const MOST_LOOSE = 4;

export function layout(): (tasks: Task[]) => Placed[] {
  // Equal levels share one layout.
  const levels = remembered(({ task, boxes }: Level) => arrange(task, boxes, pieces), ({ task, boxes }) => [outline({ ...task, boxes }), task.header, task.padding, task.leastWidth]);
  const pieces = remembered(inChains, outline);
  return (tasks) => {
    const placed = new Map<number, Placed>();
    for (const task of tasks) {
      const boxes = task.boxes.map((box) => measured(box, placed, task));
      placed.set(task.level, { ...levels({ task, boxes }), level: task.level });
    }
    return [...placed.values()];
  };
}

interface Level {
  readonly task: Task;
  readonly boxes: Area[];
}

function remembered<Q, A>(make: (question: Q) => A, key: (question: Q) => unknown): (question: Q) => A {
  const known = new Map<string, A>();
  return (question) => {
    const text = JSON.stringify(key(question));
    const answer = known.get(text) ?? make(question);
    known.set(text, answer);
    return answer;
  };
}

function measured(box: Box, levels: ReadonlyMap<number, Placed>, task: Task): Area {
  const inner = box.width ? undefined : (levels.get(box.item) ?? task.known?.find((level) => level.level === box.item));
  return inner ? { item: box.item, width: inner.width, height: inner.height, ports: inner } : { ...box, ports: undefined };
}

/** Everything a layout depends on, except the ids of the items. */
function outline({ boxes, links, entries, exits }: Piece): unknown {
  const at = new Map(boxes.map(({ item }, position) => [item, position]));
  const sizes = boxes.map(({ width, height, ports }) => [width, height, ports?.entry, ports?.exit]);
  const ends = links.map(([from, to]) => [at.get(from), at.get(to)]);
  return [sizes, ends, entries.map((item) => at.get(item)), exits.map((item) => at.get(item))];
}

function arrange(task: Task, boxes: readonly Area[], lay: (piece: Piece) => Ranks): Placed {
  const linked = new Set([...task.links.flat(), ...task.entries, ...task.exits]);
  const loose = boxes.filter((box) => !linked.has(box.item));
  const tied = loose.length > MOST_LOOSE ? boxes.filter((box) => linked.has(box.item)) : boxes;
  const placed: Placed = { level: task.level, width: 0, height: 0, at: [], paths: [], far: [], entryPaths: [], exitPaths: [], entry: null, exit: null };
  const at = new Map<number, [number, number]>();
  if (tied.length) inPieces(task, tied, placed, at, lay);
  if (tied.length < boxes.length) inRows(loose, placed, at);
  placed.at = boxes.map(({ item }) => at.get(item) as [number, number]);
  frame(placed, task);
  return placed;
}

function inPieces(task: Task, boxes: readonly Area[], placed: Placed, at: Map<number, [number, number]>, lay: (piece: Piece) => Ranks): void {
  const entries = task.entries.length <= MOST_PORT_EDGES ? task.entries : [];
  const exits = task.exits.length <= MOST_PORT_EDGES ? task.exits : [];
  const far = (placed.far = farLinks(boxes, task.links));
  const { pieces, turns } = cut(boxes, task.links, far, entries, exits);
  const laid = pieces.map(lay);
  const { width, height, corners, joins } = join(pieces, laid, turns);
  placed.width = width;
  placed.height = height;

  const paths = new Map<string, number[]>();
  pieces.forEach((piece, number) => {
    const [left, top] = corners[number] as [number, number];
    const ranks = laid[number] as Ranks;
    const shift = (path: readonly number[]) => path.map((value, at) => value + (at % 2 ? top : left));
    piece.boxes.forEach(({ item }, box) => at.set(item, shift(ranks.at[box] as [number, number]) as [number, number]));
    piece.links.forEach((link, edge) => paths.set(link.join(), shift(ranks.paths[edge] as number[])));
    placed.entryPaths.push(...ranks.entryPaths.map(shift));
    placed.exitPaths.push(...ranks.exitPaths.map(shift));
    if (ranks.entry !== null) placed.entry = left + ranks.entry;
    if (ranks.exit !== null) placed.exit = left + ranks.exit;
    const before = pieces[number - 1]?.boxes.at(-1);
    if (before) paths.set(`${before.item},${piece.boxes[0]?.item}`, joins[number - 1] as number[]);
  });

  const areas = new Map(boxes.map((box) => [box.item, box]));
  const bow = (from: number, to: number): number[] => {
    const [[ax, ay], [bx, by]] = [at.get(from) as [number, number], at.get(to) as [number, number]];
    const [a, b] = [areas.get(from) as Area, areas.get(to) as Area];
    const [start, end] = [ay + a.height / 2, by + b.height / 2];
    const out = Math.max(ax + a.width, bx + b.width) + Math.min(30 + Math.abs(end - start) / 6, 240);
    placed.width = Math.max(placed.width, out);
    return [ax + a.width, start, out, start, out, end, bx + b.width, end];
  };
  placed.paths = task.links.map(([from, to], link) => (far[link] ? bow(from, to) : (paths.get(`${from},${to}`) as number[])));
}

/** Place items without edges below the others, in rows that together form about a square. */
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

/** Add the margin for the frame around a level. Edges from outside begin and end on the frame. */
function frame(placed: Placed, { header, padding, leastWidth }: Task): void {
  const top = header + padding;
  const xs = [...placed.paths, ...placed.entryPaths, ...placed.exitPaths].flatMap((path) => path.filter((_, at) => at % 2 === 0));
  const [low, high] = [Math.min(0, ...xs), Math.max(placed.width, ...xs)]; // dagre may route edges beside the outermost items
  const side = Math.max(padding, (leastWidth - (high - low)) / 2);
  const left = side - low;
  const shift = (path: number[]) => path.map((value, at) => value + (at % 2 ? top : left));
  placed.at = placed.at.map(([x, y]) => [x + left, y + top]);
  placed.width = left + high + side;
  placed.height += top + padding;
  placed.paths = placed.paths.map(shift);
  placed.entryPaths = placed.entryPaths.map(shift).map((path) => [path[0] ?? 0, 0, ...path]);
  placed.exitPaths = placed.exitPaths.map(shift).map((path) => [...path, path.at(-2) ?? 0, placed.height]);
  if (placed.entry !== null) placed.entry += left;
  if (placed.exit !== null) placed.exit += left;
}
