// Split a level at positions that a single edge passes. Then stack the pieces one below the other, and
// a long stack in several columns.

import { type Area, type Piece, port, RANK_GAP, type Ranks } from "./ranks";

interface Cut {
  readonly pieces: Piece[];
  /** For each piece but the last: true if the next piece may start a column. */
  readonly turns: boolean[];
}

interface Joined {
  readonly width: number;
  readonly height: number;
  /** Left and top of each piece. */
  readonly corners: [number, number][];
  /** The edge from each piece to the next. */
  readonly joins: number[][];
}

const FEWEST_IN_COLUMNS = 4;
const TALL = 1800; // height in pixels up to which a stack has one column
const ASPECT = 1.3; // width / height of all columns together
const COLUMN_GAP = 56;
const TURN = 16; // pixels above and below columns, for the edges between them

/** Split a level whose boxes are in topological order, ignoring `far` links. */
export function cut(boxes: readonly Area[], links: readonly [number, number][], far: readonly boolean[], entries: readonly number[], exits: readonly number[]): Cut {
  const position = new Map(boxes.map(({ item }, at) => [item, at]));
  const of = (item: number) => position.get(item) as number;
  // Number of edges that pass from each position to the next, edges from and to outside included.
  const passing = new Int32Array(boxes.length + 1);
  const bowed = new Int32Array(boxes.length + 1);
  const count = (counts: Int32Array, from: number, to: number): void => {
    for (let at = Math.max(0, Math.min(from, to)); at < Math.max(from, to); at++) counts[at] = (counts[at] as number) + 1;
  };
  links.forEach(([from, to], link) => count(far[link] ? bowed : passing, of(from), of(to)));
  for (const item of entries) count(passing, -1, of(item));
  for (const item of exits) count(passing, of(item), boxes.length);

  const near = links.filter((_, link) => !far[link]);
  // In its piece, the last box must be below all others, and the first box above all others.
  const [users, inputs] = [new Int32Array(boxes.length), new Int32Array(boxes.length)];
  for (const [from, to] of near) {
    users[of(from)] = (users[of(from)] as number) + 1;
    inputs[of(to)] = (inputs[of(to)] as number) + 1;
  }
  const next = new Set(near.filter(([from, to]) => of(to) === of(from) + 1 && users[of(from)] === 1 && inputs[of(to)] === 1).map(([from]) => of(from)));
  const ends = [...boxes.keys()].filter((at) => at === boxes.length - 1 || (passing[at] === 1 && next.has(at)));
  const pieces = ends.map((end, at) => ({ boxes: boxes.slice(at ? (ends[at - 1] as number) + 1 : 0, end + 1), links: [] as [number, number][], entries: [] as number[], exits: [] as number[] }));
  const home = new Map(pieces.flatMap((piece) => piece.boxes.map(({ item }) => [item, piece] as const)));
  for (const link of near) if (home.get(link[0]) === home.get(link[1])) home.get(link[0])?.links.push(link);
  for (const item of entries) home.get(item)?.entries.push(item);
  for (const item of exits) home.get(item)?.exits.push(item);
  return { pieces, turns: ends.slice(0, -1).map((end) => bowed[end] === 0) };
}

export function join(pieces: readonly Piece[], laid: readonly Ranks[], turns: readonly boolean[]): Joined {
  const out = (at: number) => end(pieces[at]?.boxes.at(-1), laid[at]?.at.at(-1), "exit");
  const into = (at: number) => end(pieces[at]?.boxes[0], laid[at]?.at[0], "entry");
  const columns = inColumns(laid, turns);
  const deep = columns.length > 1 ? TURN : 0;
  const corners: [number, number][] = [];
  const joins: number[][] = [];
  const lefts: number[] = [];
  let [left, height] = [0, 0];
  for (const [first, behind] of columns) {
    const room = Math.max(...laid.slice(first, behind).map(({ width }) => width));
    let y = deep;
    lefts.push(left);
    for (let at = first; at < behind; at++) {
      const { width, height } = laid[at] as Ranks;
      const before = corners[at - 1];
      let x = (room - width) / 2;
      // Move the next piece, if possible, so that the edge between the two pieces is straight.
      if (at > first && before) x = Math.max(0, Math.min(room - width, before[0] - left + out(at - 1)[0] - into(at)[0]));
      corners.push([left + x, y]);
      y += height + RANK_GAP;
    }
    height = Math.max(height, y - RANK_GAP);
    left += room + COLUMN_GAP;
  }
  height += deep;
  for (let at = 1; at < laid.length; at++) {
    const [x0, y0] = shift(out(at - 1), corners[at - 1] as [number, number]);
    const [x1, y1] = shift(into(at), corners[at] as [number, number]);
    const column = columns.findIndex(([first]) => first === at);
    const middle = (lefts[column] ?? 0) - COLUMN_GAP / 2;
    const turning = [x0, y0, x0, y0 + TURN, middle, y0 + TURN, middle, y0 - TURN, middle, 2 * TURN, middle, TURN / 2, middle + TURN / 2, 0, middle + 2 * TURN, 0, x1, 0, x1, y1];
    joins.push(column < 0 ? [x0, y0, x1, y1] : turning);
  }
  return { width: left - COLUMN_GAP, height, corners, joins };
}

/** The range of pieces of each column. */
function inColumns(laid: readonly Ranks[], turns: readonly boolean[]): [number, number][] {
  const height = laid.reduce((sum, one) => sum + one.height + RANK_GAP, 0);
  const width = Math.max(...laid.map((one) => one.width)) + COLUMN_GAP;
  const wanted = laid.length < FEWEST_IN_COLUMNS || height < TALL ? 1 : Math.floor(Math.sqrt((ASPECT * height) / width));
  const columns: [number, number][] = [];
  let [first, filled] = [0, 0];
  laid.forEach((one, at) => {
    filled += one.height + RANK_GAP;
    const full = filled + one.height / 2 > height / wanted && columns.length < wanted - 1 && turns[at];
    if (!full && at < laid.length - 1) return;
    columns.push([first, at + 1]);
    [first, filled] = [at + 1, 0];
  });
  return columns;
}

function end(box: Area | undefined, corner: [number, number] | undefined, side: "entry" | "exit"): [number, number] {
  const { height } = box as Area;
  return shift([port(box as Area, side), side === "entry" ? 0 : height], corner as [number, number]);
}

function shift([x, y]: readonly [number, number], [left, top]: readonly [number, number]): [number, number] {
  return [x + left, y + top];
}
