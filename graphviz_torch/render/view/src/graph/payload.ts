// Decode the payload that payload.py encodes: a header, and columns of numbers as byte planes.

/** A color: its light value and its dark value. */
export type Pair = [string, string];

export interface Style {
  readonly colors: Record<string, Pair>;
  readonly scale: Pair[];
  readonly nonfinite: Pair;
  readonly categories: Pair[];
}

export interface Header {
  title: string;
  style: Style;
  count: number;
  /** Number of autograd nodes. Data, and calls without an autograd node, come after these. */
  tracked: number;
  /** Data or call -> its position in the order of the nodes. */
  places: Record<string, number>;
  ordered: boolean;
  outputs: [number, number][];
  lossScale: number | null;
  failure: Failure | null;
  /** True if a finding reports the failure. */
  failureTold: boolean;
  /** True if the last node represents the operation that raised an exception. */
  failed: boolean;
  difference: Difference | null;
  influences: string[];
  cuts: Cut[];
  findings: Finding[];
  /** Module path -> records of the module: names and texts. */
  modules: Record<string, [string, string][]>;
  transfers: Transfer[];
  collectives: Collective[];
  /** Time of each rank in collectives: data URL of an image, and sentences. */
  ranks: { image: string; waits: string[] } | null;
  /** Node -> lines on its collectives. */
  sending: Record<string, string[]>;
  metas: [number[], string, string, number | null][];
  shapes: number[][];
  saved: [string, number, number, string, number | null][][];
  values: Record<string, (number | string)[]>;
  /** Node -> the elements of each small output; null for an output that was not read. */
  results: Record<string, ((number | string)[] | null)[]>;
  extents: Record<string, string>;
  groups: number;
  groupName: string[];
  groupClass: string[];
  /** The groups that are open in a still picture; null if the view chooses. */
  open: number[] | null;
  name: string[];
  operation: string[];
  /** A label in a list is the rest of a label that begins with the module's path and a dot. */
  label: (string | [string])[];
  module: string[];
  /** Scope of the node; "" if it is the path of the module. */
  scope: string[];
  where: string[];
  note: string[];
  moduleClass: string[];
  attributes: string[][];
  /** Operations with their distinguishing attributes: "pow 2". */
  called: string[];
  columns: [string, "number" | "step" | "signed" | "measured", number, number][];
}

export interface Failure {
  error: string;
  message: string;
  operation: string;
  where: string;
  node: number | null;
}

export type Mark = "added" | "removed" | "changed";

/** The differences of two graphs that are shown as one. */
export interface Difference {
  marks: [number, Mark][];
  changes: Record<string, [string, string, string][]>;
  /** Edges between common nodes that only one of the graphs has, as text. */
  edges: string[];
  /** Positions, in the edge columns, of those that the second graph has. */
  addedEdges: number[];
}

export interface Cut {
  how: string;
  before: number | null;
  after: number[];
  where: string;
  label: string;
}

export interface Finding {
  rule: string;
  severity: "error" | "warning" | "info";
  message: string;
  advice: string;
  cause: string;
  where: string;
  nodes: number[];
  transfers: number[];
}

export interface Transfer {
  kind: string;
  source: string;
  target: string;
  tensor: number;
  phase: string;
  node: number | null;
  where: string;
  label: string;
  pinned: boolean | null;
  non_blocking: boolean | null;
  seconds: number | null;
  nbytes: number | null;
}

/** A collective of this rank; `text` contains bytes, group, phase and source line. */
export interface Collective {
  kind: string;
  nbytes: number;
  node: number | null;
  module: string;
  text: string;
}

export type Column = ArrayLike<number>;

export class Payload {
  private readonly places = new Map<string, { kind: string; size: number; rows: number; planes: Uint8Array }>();
  private readonly read = new Map<string, Column>();

  constructor(
    readonly header: Header,
    data: Uint8Array,
  ) {
    let at = 0;
    for (const [name, kind, size, rows] of header.columns) {
      this.places.set(name, { kind, size, rows, planes: data.subarray(at, at + size * rows) });
      at += size * rows;
    }
  }

  has(name: string): boolean {
    return this.places.has(name);
  }

  /** Return a column of `rows` numbers. A number that was not measured is NaN; a column that was left out is all zeros. */
  column(name: string, rows: number): Column {
    let column = this.read.get(name);
    if (!column) {
      const place = this.places.get(name);
      if (!place) column = new Uint8Array(rows);
      else if (place.kind === "measured") column = reals(place.planes, rows);
      else column = integers(place.planes, rows, place.size, place.kind);
      this.read.set(name, column);
    }
    return column;
  }
}

export async function decode(text: string): Promise<Payload> {
  const binary = atob(text.trim());
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = new Uint8Array(await new Response(stream).arrayBuffer());

  const length = new DataView(data.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + length))) as Header;
  return new Payload(header, data.subarray(4 + length));
}

function reals(planes: Uint8Array, rows: number): Float64Array {
  const joined = new Uint8Array(8 * rows);
  for (let plane = 0; plane < 8; plane++)
    for (let row = 0; row < rows; row++) joined[8 * row + plane] = planes[plane * rows + row] as number;
  return new Float64Array(joined.buffer);
}

function integers(planes: Uint8Array, rows: number, size: number, kind: string): Column {
  const values = size <= 3 ? new Int32Array(rows) : new Float64Array(rows);
  for (let plane = size - 1; plane >= 0; plane--)
    for (let row = 0; row < rows; row++)
      values[row] = (values[row] as number) * 256 + (planes[plane * rows + row] as number);
  if (kind === "number") return values;
  let sum = 0;
  for (let row = 0; row < rows; row++) {
    const folded = values[row] as number;
    const value = folded % 2 ? -(folded + 1) / 2 : folded / 2;
    sum += value;
    values[row] = kind === "step" ? sum : value;
  }
  return values;
}
