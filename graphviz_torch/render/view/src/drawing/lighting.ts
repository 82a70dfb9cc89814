// Highlights: an item and its direct neighbours brightly, and faintly the paths from there to the
// outputs and to the leaves.

import type { Model } from "../graph/model";
import { reach, TO_LEAVES, TO_OUTPUTS } from "../graph/reach";
import type { Tree } from "../graph/tree";
import type { Places } from "./places";
import type { Path } from "./scene";

export interface Lit {
  /** Item -> the requested paths that contain the item. */
  readonly ways: ReadonlyMap<number, number>;
  /** The selected item and its neighbors. */
  readonly near: ReadonlySet<number>;
  /** Edge segments between these items, as keys of `ends`. */
  readonly pieces: ReadonlySet<string>;
}

export function ends({ from, to }: Pick<Path, "from" | "to">): string {
  return `${from} ${to}`;
}

export class Lighting {
  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly places: Places,
  ) {}

  /** The path from the hovered item to the outputs. */
  hovered(item: number, frames: Iterable<number>): Lit {
    return { ways: this.ways(item, frames, TO_OUTPUTS), near: new Set(), pieces: new Set() };
  }

  selected(item: number, frames: Iterable<number>): Lit {
    return { ways: this.ways(item, frames, TO_LEAVES | TO_OUTPUTS), ...this.neighbours(item) };
  }

  private ways(item: number, frames: Iterable<number>, wanted: number): Map<number, number> {
    const { model, tree } = this;
    const shown = this.places.all;
    const marks = reach(model, tree.nodes(item), wanted);
    const lit = new Map<number, number>();
    marks.forEach((mark, node) => {
      if (!mark || (tree.folded[node] && node !== item)) return;
      const at = shown[node] as number;
      lit.set(at, (lit.get(at) ?? 0) | mark);
    });
    for (const frame of frames) {
      const inside = tree.nodes(frame).reduce((all, node) => all | (marks[node] as number), 0);
      if (inside) lit.set(frame, inside);
    }
    return lit;
  }

  private neighbours(item: number): { near: Set<number>; pieces: Set<string> } {
    const { model, tree } = this;
    const shown = this.places.all;
    const near = new Set<number>();
    const pairs = new Map<string, [number, number]>();
    const add = (source: number, target: number): void => {
      if ((tree.origin[source] as number) < 0 && source !== item) return;
      const pair: [number, number] = [shown[source] as number, shown[target] as number];
      if (pair[0] !== pair[1]) pairs.set(pair.join(), pair);
    };
    const nodes = [...tree.nodes(item)];
    for (const node of nodes) {
      near.add(shown[node] as number);
      for (let edge = model.inputStart[node] as number; edge < (model.inputStart[node + 1] as number); edge++)
        add(model.inputSource[edge] as number, node);
      for (let at = model.userStart[node] as number; at < (model.userStart[node + 1] as number); at++) {
        const user = model.edgeTarget[model.userEdge[at] as number] as number;
        add(node, user);
        if (tree.folded[user] && !nodes.includes(user)) nodes.push(user); // a reshape passes the output on
      }
    }
    const pieces = new Set<string>();
    for (const [from, to] of pairs.values()) {
      near.add(from).add(to);
      const way = this.between(from, to);
      way.forEach((one, at) => at && pieces.add(ends({ from: way[at - 1] as number, to: one })));
    }
    return { near, pieces };
  }

  /** The items along an edge: source card, frames that the edge leaves, frames that it enters, target card. */
  private between(from: number, to: number): number[] {
    const [left, entered] = [this.tree.around(from), this.tree.around(to)];
    while (left.length && left.at(-1) === entered.at(-1)) {
      left.pop();
      entered.pop();
    }
    return [from, ...left, ...entered.reverse(), to];
  }
}
