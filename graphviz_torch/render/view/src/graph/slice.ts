// One level of the picture: its items, and the links that merge the graph's edges between two items.

import type { Model } from "./model";
import type { Cut, Mark } from "./payload";
import type { Tree } from "./tree";

export interface Link {
  readonly from: number;
  readonly to: number;
  edges: number;
  /** The tensor that all edges of the link carry, as a position in the model's metas; null if the tensors differ. */
  meta: number | null;
  /** The difference between two graphs that all edges of the link have; "" if they differ. */
  mark: Mark | "";
  /** Source node and output of the link's first edge. */
  readonly source: number;
  readonly outputNr: number;
  /** Bytes and devices of the copies between devices on this link. */
  bytes: number;
  way: string;
  /** For a link without edges: the cut that the link represents. */
  readonly cut: Cut | null;
}

export interface Slice {
  readonly level: number;
  readonly items: number[];
  readonly links: Link[];
  /** Items with inputs from outside of the level, and items with users outside of the level. */
  readonly entries: number[];
  readonly exits: number[];
}

export class Slicer {
  private readonly slot: Int32Array; // node -> item, while a level is built
  private readonly known = new Map<number, Slice>();

  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
  ) {
    this.slot = new Int32Array(model.count);
  }

  slice(level: number): Slice {
    let slice = this.known.get(level);
    if (!slice) this.known.set(level, (slice = this.cut(level)));
    return slice;
  }

  private cut(level: number): Slice {
    const { model, tree, slot } = this;
    const items = tree.items(level);
    for (const item of items) for (const node of tree.nodes(item)) slot[node] = item;
    const links = new Map<string, Link>();
    const entries = new Set<number>();
    const exits = new Set<number>();
    for (const node of tree.nodes(level)) {
      if (tree.folded[node]) continue;
      const to = slot[node] as number;
      const transfer = model.isTransfer(node);
      for (let edge = model.inputStart[node] as number; edge < (model.inputStart[node + 1] as number); edge++) {
        const passed = model.inputSource[edge] as number;
        const source = tree.origin[passed] as number;
        if (source < 0) continue;
        if (!tree.contains(level, source)) {
          entries.add(to);
          continue;
        }
        const from = slot[source] as number;
        if (from === to) continue;
        const key = `${from} ${to}`;
        let link = links.get(key);
        if (!link) {
          const outputNr = model.edgeOutput[edge] as number;
          const meta = this.meta(passed, outputNr);
          links.set(key, (link = { from, to, edges: 0, meta, mark: this.mark(edge, source, node), source, outputNr, bytes: 0, way: "", cut: null }));
        } else {
          if (link.meta !== null && link.meta !== this.meta(passed, model.edgeOutput[edge] as number)) link.meta = null;
          if (link.mark && link.mark !== this.mark(edge, source, node)) link.mark = "";
        }
        link.edges += 1;
        if (transfer) this.cross(link, source, node);
      }
      if (this.leaves(node, level)) exits.add(to);
    }
    this.sever(level, items, links);
    return { level, items, links: [...links.values()], entries: [...entries], exits: [...exits] };
  }

  /** True if a node has a user outside of a level, directly or through reshapes without a card. */
  private leaves(node: number, level: number): boolean {
    const { model, tree } = this;
    for (let at = model.userStart[node] as number; at < (model.userStart[node + 1] as number); at++) {
      const user = model.edgeTarget[model.userEdge[at] as number] as number;
      if (tree.folded[user] ? this.leaves(user, level) : !tree.contains(level, user)) return true;
    }
    return false;
  }

  /** Add a link between the two sides of each cut, unless there is one already, or it would point upwards. */
  private sever(level: number, items: readonly number[], links: Map<string, Link>): void {
    const { model, tree, slot } = this;
    const here = (node: number) => !tree.folded[node] && tree.contains(level, node);
    const position = new Map(model.cuts.length ? items.map((item, at) => [item, at]) : []);
    for (const cut of model.cuts)
      for (const after of cut.after) {
        const { before } = cut;
        if (before === null || !here(before) || !here(after)) continue;
        const [from, to] = [slot[before] as number, slot[after] as number];
        const key = `${from} ${to}`;
        if (links.has(key) || (position.get(from) as number) >= (position.get(to) as number)) continue;
        links.set(key, { from, to, edges: 0, meta: null, mark: "", source: before, outputNr: 0, bytes: 0, way: "", cut });
      }
  }

  private meta(source: number, outputNr: number): number | null {
    const at = this.model.shapes[this.model.shapeOf[source] as number]?.[outputNr] ?? -1;
    return at < 0 ? null : at;
  }

  private mark(edge: number, source: number, target: number): Mark | "" {
    const { model } = this;
    if (!model.difference) return "";
    const ends = [model.mark(source), model.mark(target)];
    if (ends.includes("removed")) return "removed";
    return ends.includes("added") || model.addedEdges.has(edge) ? "added" : "";
  }

  private cross(link: Link, source: number, node: number): void {
    const sent = this.model.firstOutput(source);
    const arrived = this.model.firstOutput(node);
    if (!sent || !arrived || sent.device === arrived.device) return;
    link.bytes += arrived.nbytes ?? 0;
    const way = `${sent.device} → ${arrived.device}`;
    link.way = link.way === "" || link.way === way ? way : "between devices";
  }
}
