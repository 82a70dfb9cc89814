// The graph: the values of nodes, and the edges in both directions.

import type { Collective, Column, Cut, Difference, Failure, Finding, Mark, Payload, Transfer } from "./payload";

export interface Meta {
  readonly shape: number[];
  readonly dtype: string;
  readonly device: string;
  readonly nbytes: number | null;
}

export interface Saved {
  readonly name: string;
  readonly tensor: Meta;
  readonly nbytes: number;
  readonly kind: string;
  readonly sharedWith: number | null;
}

export interface Gradient {
  readonly norm: number;
  readonly maxAbs: number;
  readonly mean: number;
  readonly zeros: number;
  readonly nan: number;
  readonly inf: number;
  readonly values: (number | string)[] | null;
  readonly tensor: Meta | null;
  readonly extent: string; // part of the gradient that the numbers describe: "local part"; "" for the whole
}

export interface Change {
  readonly what: string;
  readonly before: string;
  readonly after: string;
}

export interface Edge {
  readonly node: number;
  readonly outputNr: number;
  readonly inputNr: number;
}

export type TextColumn = "name" | "operation" | "label" | "module" | "scope" | "where" | "note" | "moduleClass" | "called";

const COPIES = /^(ToCopy|Copy)Backward/;
export const PARAMETER = 1;
export const BUFFER = 2;
/** Kind of nodes that represent data, or calls without an autograd node. */
export const DATA = 4;
export const UNTRACKED = 5;

export class Model {
  readonly count: number;
  readonly title: string;
  readonly metas: readonly Meta[];
  readonly shapes: number[][];
  readonly transfers: readonly Transfer[];
  readonly collectives: readonly Collective[];
  readonly findings: readonly Finding[];
  readonly cuts: readonly Cut[];
  readonly failure: Failure | null;
  /** The node added for the operation that raised an exception. */
  readonly failed: number | null;
  readonly difference: Difference | null;
  /** Names of the sources whose influence on nodes is known: "sample 0", "input x". */
  readonly influences: string[];
  readonly addedEdges: ReadonlySet<number>;
  readonly lossScale: number | null;
  readonly outputs: ReadonlySet<number>;
  readonly leaf: Column;
  /** Node -> position in the backward run, -1 if it did not run; null if no backward was recorded. */
  readonly order: Column | null;
  readonly recordedGradients: boolean;
  /** True if any gradient has NaN or Inf. */
  readonly recordedNonfinite: boolean;
  readonly shapeOf: Column;
  readonly savedBytes: Float64Array;
  readonly parameterState: Column;
  /** Edges sorted by target, and by source. Those of node i are from start[i] to start[i + 1]. */
  readonly inputStart: Uint32Array;
  readonly inputSource: Uint32Array;
  readonly userStart: Uint32Array;
  readonly userEdge: Uint32Array;
  readonly edgeTarget: Uint32Array;
  readonly edgeOutput: Column;
  readonly findingsOf = new Map<number, Finding[]>();
  readonly transfersOf = new Map<number, Transfer[]>();
  /** Node -> collectives; -1 -> collectives that belong to no node. */
  readonly collectivesOf = new Map<number, Collective[]>();
  private readonly marks: ReadonlyMap<number, Mark>;
  private readonly texts = new Map<TextColumn, { at: Column; table: string[] }>();
  private readonly attributesOf: Column;
  private readonly times: Column | null;
  private readonly edgeInput: Column;
  private readonly savedOf: Column;
  private readonly gradientStart: Uint32Array;
  private readonly transfer: Uint8Array;
  private readonly norms: Column | null;
  private readonly nan: Column;
  private readonly inf: Column;
  private readonly gradientTensor: Column;

  constructor(readonly payload: Payload) {
    const { header } = payload;
    const count = (this.count = header.count);
    this.title = header.title;
    this.metas = header.metas.map(([shape, dtype, device, nbytes]) => ({ shape, dtype, device, nbytes }));
    this.shapes = header.shapes;
    this.transfers = header.transfers;
    this.collectives = header.collectives;
    this.findings = header.findings;
    this.cuts = header.cuts;
    this.failure = header.failure;
    this.lossScale = header.lossScale;
    this.failed = header.failed ? count - 1 : null;
    this.difference = header.difference;
    this.influences = header.influences;
    this.marks = new Map(header.difference?.marks);
    this.addedEdges = new Set(header.difference?.addedEdges);
    this.outputs = new Set(header.outputs.map(([node]) => node));
    for (const name of ["name", "operation", "module", "scope", "where", "note", "moduleClass", "called"] as const)
      this.texts.set(name, { at: payload.column(name, count), table: header[name] });
    this.texts.set("label", this.labels(payload.column("label", count), header.label));
    this.attributesOf = payload.column("attributes", count);
    this.leaf = payload.column("leaf", count);
    this.order = payload.has("order") && header.ordered ? payload.column("order", count) : null;
    this.times = payload.has("seconds") ? payload.column("seconds", count) : null;
    this.shapeOf = payload.column("shapes", count);
    this.savedOf = payload.column("saved", count);
    const kept = header.saved.map((rows) => rows.reduce((sum, [, , nbytes]) => sum + nbytes, 0));
    this.savedBytes = new Float64Array(count);
    for (let node = 0; node < count; node++) this.savedBytes[node] = kept[this.savedOf[node] as number] as number;
    this.parameterState = payload.column("parameter", count);

    this.inputStart = starts(payload.column("inputs", count), count);
    const edges = this.inputStart[count] as number;
    const distance = payload.column("edgeSource", edges);
    this.edgeOutput = payload.column("edgeOutput", edges);
    this.edgeInput = payload.column("edgeInput", edges);
    this.inputSource = new Uint32Array(edges);
    this.edgeTarget = new Uint32Array(edges);
    const users = new Uint32Array(count);
    for (let node = 0; node < count; node++)
      for (let edge = this.inputStart[node] as number; edge < (this.inputStart[node + 1] as number); edge++) {
        const source = node - (distance[edge] as number);
        this.inputSource[edge] = source;
        this.edgeTarget[edge] = node;
        users[source] = (users[source] as number) + 1;
      }
    this.userStart = starts(users, count);
    this.userEdge = new Uint32Array(edges);
    const next = this.userStart.slice();
    for (let edge = 0; edge < edges; edge++) {
      const source = this.inputSource[edge] as number;
      const at = next[source] as number;
      this.userEdge[at] = edge;
      next[source] = at + 1;
    }

    this.gradientStart = starts(payload.column("gradients", count), count);
    const rows = this.gradientStart[count] as number;
    this.recordedGradients = payload.has("norm");
    this.recordedNonfinite = payload.has("nan") || payload.has("inf");
    this.norms = this.recordedGradients ? payload.column("norm", rows) : null;
    this.nan = payload.column("nan", rows);
    this.inf = payload.column("inf", rows);
    this.gradientTensor = payload.column("gradTensor", rows);

    for (const finding of header.findings) for (const node of finding.nodes) push(this.findingsOf, node, finding);
    for (const transfer of header.transfers) if (transfer.node !== null) push(this.transfersOf, transfer.node, transfer);
    for (const sent of header.collectives) push(this.collectivesOf, sent.node ?? -1, sent);
    const names = this.column("name");
    const copies = names.table.map((name) => COPIES.test(name));
    this.transfer = new Uint8Array(count);
    for (let node = 0; node < count; node++)
      if ((copies[names.at[node] as number] && this.crosses(node)) || this.transfersOf.has(node)) this.transfer[node] = 1;
  }

  private labels(at: Column, written: Payload["header"]["label"]): { at: Column; table: string[] } {
    const known = new Map([["", 0]]);
    const places = Uint32Array.from({ length: this.count }, (_, node) => {
      if (at[node] === 0) return 0;
      const row = written[at[node] as number] as string | [string];
      const label = typeof row === "string" ? row : `${this.text("module", node)}.${row[0]}`;
      const place = known.get(label) ?? known.size;
      known.set(label, place);
      return place;
    });
    return { at: places, table: [...known.keys()] };
  }

  text(column: TextColumn, node: number): string {
    const { at, table } = this.column(column);
    return table[at[node] as number] as string;
  }

  column(column: TextColumn): { at: Column; table: string[] } {
    return this.texts.get(column) as { at: Column; table: string[] };
  }

  /** The title of the node: the name of the forward operation, or else that of autograd. */
  operation(node: number): string {
    return this.text("operation", node) || this.text("name", node);
  }

  /** The operation with its distinguishing attributes: "pow 2". */
  described(node: number): string {
    return this.text("called", node) || this.operation(node);
  }

  caption(node: number): string {
    return this.text("label", node) || this.operation(node);
  }

  outputsOf(node: number): (Meta | null)[] {
    return (this.shapes[this.shapeOf[node] as number] as number[]).map((at) => this.metas[at] ?? null);
  }

  firstOutput(node: number): Meta | null {
    for (const at of this.shapes[this.shapeOf[node] as number] as number[]) {
      const meta = this.metas[at];
      if (meta) return meta;
    }
    return null;
  }

  saved(node: number): Saved[] {
    const rows = this.payload.header.saved[this.savedOf[node] as number] ?? [];
    return rows.map(([name, meta, nbytes, kind, away]) => ({
      name,
      tensor: this.metas[meta] as Meta,
      nbytes,
      kind,
      sharedWith: away === null ? null : node - away,
    }));
  }

  /** Bytes that all nodes save, by kind of tensor ("activation", "parameter", ...), largest first. */
  savedByKind(): [string, number][] {
    const rows = this.payload.header.saved;
    const users = new Uint32Array(rows.length);
    for (let node = 0; node < this.count; node++) users[this.savedOf[node] as number] = (users[this.savedOf[node] as number] as number) + 1;
    const kinds = new Map<string, number>();
    rows.forEach((row, at) => {
      for (const [, , nbytes, kind] of row) kinds.set(kind, (kinds.get(kind) ?? 0) + nbytes * (users[at] as number));
    });
    return [...kinds].filter(([, size]) => size).sort((a, b) => b[1] - a[1]);
  }

  /** The elements of each small output; null for an output that was not read. */
  values(node: number): readonly (readonly (number | string)[] | null)[] {
    return this.payload.header.results[node] ?? [];
  }

  gradients(node: number): (Gradient | null)[] {
    const found: (Gradient | null)[] = [];
    for (let row = this.gradientStart[node] as number; row < (this.gradientStart[node + 1] as number); row++) {
      const size = this.gradient("norm", row);
      found.push(
        Number.isNaN(size)
          ? null
          : {
              norm: size,
              maxAbs: this.gradient("maxAbs", row),
              mean: this.gradient("mean", row),
              zeros: this.gradient("zeros", row),
              nan: this.nan[row] as number,
              inf: this.inf[row] as number,
              values: this.payload.header.values[row] ?? null,
              tensor: this.metas[(this.gradientTensor[row] as number) - 1] ?? null,
              extent: this.payload.header.extents[row] ?? "",
            },
      );
    }
    return found;
  }

  private gradient(column: "norm" | "maxAbs" | "mean" | "zeros", row: number): number {
    if (!this.recordedGradients) return Number.NaN;
    return this.payload.column(column, this.gradientStart[this.count] as number)[row] as number;
  }

  get recordedSeconds(): boolean {
    return this.times !== null;
  }

  /** Seconds in backward; NaN if not measured. */
  seconds(node: number): number {
    return this.times ? (this.times[node] as number) : Number.NaN;
  }

  /** The fraction of a node's elements that a source changes; NaN if the source does not reach the node. */
  influence(lane: number, node: number): number {
    const name = `influence${lane}`;
    return this.payload.has(name) ? (this.payload.column(name, this.count)[node] as number) : Number.NaN;
  }

  /** The largest norm among the gradients of a node; NaN if none was recorded. */
  norm(node: number): number {
    let most = Number.NaN;
    if (!this.norms) return most;
    for (let row = this.gradientStart[node] as number; row < (this.gradientStart[node + 1] as number); row++) {
      const norm = this.norms[row] as number;
      if (!(norm <= most)) most = Number.isNaN(norm) ? most : norm;
    }
    return most;
  }

  /** Number of NaN and Inf elements in a node's gradients. */
  nonfinite(node: number): number {
    let sum = 0;
    for (let row = this.gradientStart[node] as number; row < (this.gradientStart[node + 1] as number); row++)
      sum += (this.nan[row] as number) + (this.inf[row] as number);
    return sum;
  }

  inputs(node: number): Edge[] {
    const start = this.inputStart[node] as number;
    return Array.from({ length: (this.inputStart[node + 1] as number) - start }, (_, at) => ({
      node: this.inputSource[start + at] as number,
      outputNr: this.edgeOutput[start + at] as number,
      inputNr: at + (this.edgeInput[start + at] as number),
    }));
  }

  users(node: number): Edge[] {
    const found: Edge[] = [];
    for (let at = this.userStart[node] as number; at < (this.userStart[node + 1] as number); at++) {
      const edge = this.userEdge[at] as number;
      const target = this.edgeTarget[edge] as number;
      const inputNr = edge - (this.inputStart[target] as number) + (this.edgeInput[edge] as number);
      found.push({ node: target, outputNr: this.edgeOutput[edge] as number, inputNr });
    }
    return found;
  }

  /** The difference of the node between two graphs; "" if there is none. */
  mark(node: number): Mark | "" {
    return this.marks.get(node) ?? "";
  }

  changes(node: number): Change[] {
    return (this.difference?.changes[node] ?? []).map(([what, before, after]) => ({ what, before, after }));
  }

  /** The number of differing nodes, as text. */
  marked(nodes: Iterable<number>): string {
    const counts = { added: 0, removed: 0, changed: 0 };
    if (this.difference) for (const node of nodes) for (const mark of [this.mark(node)]) if (mark) counts[mark] += 1;
    return Object.entries(counts).filter(([, times]) => times).map(([mark, times]) => `${times} ${mark}`).join(", ");
  }

  /** The attributes that autograd saved, except tensors: "exponent=2". */
  attributes(node: number): readonly string[] {
    return this.payload.header.attributes[this.attributesOf[node] as number] ?? [];
  }

  /** Records of a node's module, or of the module on its path that is `names` levels below the root. */
  recorded(node: number, names?: number): readonly [string, string][] {
    const path = this.text("module", node).split(".").slice(0, names).join(".");
    return Object.hasOwn(this.payload.header.modules, path) ? (this.payload.header.modules[path] ?? []) : [];
  }

  /** The class of a node's module. */
  classOf(node: number): string {
    return this.text("moduleClass", node).split("/").at(-1) ?? "";
  }

  /** True if the node copies between devices. */
  isTransfer(node: number): boolean {
    return this.transfer[node] === 1;
  }

  /** Lines on the collectives of a node; empty if it has none. */
  sending(node: number): readonly string[] {
    return this.payload.header.sending[node] ?? [];
  }

  private crosses(node: number): boolean {
    const device = this.firstOutput(node)?.device;
    return this.inputs(node).some((edge) => (this.firstOutput(edge.node)?.device ?? device) !== device);
  }
}

/** The index of each row's first entry, computed from the number of entries per row. */
function starts(lengths: Column, rows: number): Uint32Array {
  const start = new Uint32Array(rows + 1);
  for (let row = 0; row < rows; row++) start[row + 1] = (start[row] as number) + (lengths[row] as number);
  return start;
}

function push<V>(map: Map<number, V[]>, key: number, value: V): void {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}
