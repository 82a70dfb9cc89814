// Place the boxes of a piece of a level in ranks, with dagre.

import { Graph, layout as place } from "@dagrejs/dagre";
import { order } from "./order";

export interface Area {
  readonly item: number;
  readonly width: number;
  readonly height: number;
  /** x, from the left side, at which edges enter and leave; undefined for the middle. */
  readonly ports: { readonly entry: number | null; readonly exit: number | null } | undefined;
}

/** Boxes and links of a piece; `entries` have inputs from outside, and `exits` have users outside. */
export interface Piece {
  readonly boxes: readonly Area[];
  readonly links: readonly (readonly [number, number])[];
  readonly entries: readonly number[];
  readonly exits: readonly number[];
}

export interface Ranks {
  readonly width: number;
  readonly height: number;
  readonly at: [number, number][];
  readonly paths: number[][];
  readonly entryPaths: number[][];
  readonly exitPaths: number[][];
  /** x at which edges from outside enter and leave. */
  readonly entry: number | null;
  readonly exit: number | null;
}

interface Centred {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export const GAP = 22;
export const RANK_GAP = 24;
const PORT_GAP = 12; // pixels between the frame and the first or last rank
// dagre doubles the length of edges and halves the gap between ranks, so that every second rank is for labels.
// Edges of half the length have no such rank.
const UNLABELLED = { minlen: 0.5 };
const BEYOND = 10; // pixels that an edge stays upright beside a box, because the curve cuts corners
const ENTRY = "entry";
const EXIT = "exit";

/** x from the left side of a box at which an edge enters or leaves. */
export function port({ ports, width }: Area, side: "entry" | "exit"): number {
  return ports?.[side] ?? width / 2;
}

export function inRanks({ boxes, links, entries, exits }: Piece): Ranks {
  const [only] = boxes;
  if (boxes.length === 1 && only && !entries.length && !exits.length)
    return { width: only.width, height: only.height, at: [[0, 0]], paths: [], entryPaths: [], exitPaths: [], entry: null, exit: null };

  const graph = new Graph();
  graph.setGraph({ nodesep: GAP, edgesep: 14, ranksep: 2 * RANK_GAP, ranker: boxes.length > 150 ? "tight-tree" : "network-simplex" });
  for (const { item, width, height } of boxes) graph.setNode(String(item), { width, height });
  for (const [from, to] of links) graph.setEdge(String(from), String(to), { ...UNLABELLED });
  if (entries.length) graph.setNode(ENTRY, { width: 1, height: 1 });
  if (exits.length) graph.setNode(EXIT, { width: 1, height: 1 });
  for (const item of entries) graph.setEdge(ENTRY, String(item), { ...UNLABELLED });
  for (const item of exits) graph.setEdge(String(item), EXIT, { ...UNLABELLED });
  place(graph, { customOrder: orderRanks });

  // A port is in a separate rank, which can be thin unless the rank also contains items.
  const size = graph.graph() as { width: number; height: number };
  const found = boxes.map(({ item }) => graph.node(String(item)) as Centred);
  const spare = RANK_GAP - PORT_GAP;
  const above = entries.length ? Math.min(spare, ...found.map(({ y, height }) => y - height / 2)) : 0;
  const below = exits.length ? Math.min(spare, ...found.map(({ y, height }) => size.height - y - height / 2)) : 0;
  const height = size.height - above - below;
  const within = (y: number) => Math.max(0, Math.min(height, y - above));
  const corner = new Map(found.map((box, at) => [(boxes[at] as Area).item, [box.x - box.width / 2, box.y - box.height / 2 - above] as [number, number]]));
  const areas = new Map(boxes.map((box) => [box.item, box]));
  const entry = entries.length ? (graph.node(ENTRY) as Centred).x : null;
  const exit = exits.length ? (graph.node(EXIT) as Centred).x : null;

  // An edge leaves at the middle of the lower side of a box, or at the exit of an open group.
  const end = (item: number, side: "entry" | "exit"): number[] => {
    const [x, y] = corner.get(item) as [number, number];
    const box = areas.get(item) as Area;
    return [x + port(box, side), side === "entry" ? y : y + box.height];
  };
  // An edge passes a rank upright, along the height of the rank's highest box.
  const heights = new Map<number, number>();
  for (const { y, height } of found) heights.set(Math.round(y), Math.max(heights.get(Math.round(y)) ?? 0, height));
  const passed = ({ x, y }: Centred): number[] => {
    const highest = heights.get(Math.round(y));
    if (!Number.isFinite(x) || !highest) return [];
    const half = highest / 2 + BEYOND;
    return [y - half, y, y + half].flatMap((level) => [x, within(level)]);
  };
  const path = (from: number | typeof ENTRY, to: number | typeof EXIT): number[] => {
    const { points } = graph.edge(String(from), String(to)) as { points: Centred[] };
    // The rank of a port may contain boxes as well.
    const first = from === ENTRY ? [entry as number, 0, ...passed(graph.node(ENTRY) as Centred)] : end(from, "exit");
    const last = to === EXIT ? [...passed(graph.node(EXIT) as Centred), exit as number, height] : end(to, "entry");
    return [...first, ...points.slice(1, -1).flatMap(passed), ...last];
  };
  return {
    width: size.width,
    height,
    at: boxes.map(({ item }) => corner.get(item) as [number, number]),
    paths: links.map(([from, to]) => path(from, to)),
    entryPaths: entries.map((item) => path(ENTRY, item)),
    exitPaths: exits.map((item) => path(item, EXIT)),
    entry,
    exit,
  };
}

function orderRanks(graph: Graph): void {
  order(graph);
  // dagre expects every edge to pass a rank and to have a point there.
  for (const edge of graph.edges()) (graph.edge(edge) as { points?: object[] }).points ??= [{ x: Number.POSITIVE_INFINITY, y: 0 }];
}
