// What is lit: the way from items to the loss, and from there to the leaves.

import type { Model } from "../graph/model";
import { reach, TO_LEAVES, TO_OUTPUTS } from "../graph/reach";
import { TOP, type Tree } from "../graph/tree";

/** On which ways each item lies. */
export type Lit = ReadonlyMap<number, number>;

export class Lighting {
  private shown: Int32Array | null = null;

  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly open: ReadonlySet<number>,
  ) {}

  /** Another picture: nodes may be seen as other items. */
  redrawn(): void {
    this.shown = null;
  }

  /** The items on the way from an item to the outputs; with `both` also to the leaves. */
  ways(item: number, frames: Iterable<number>, both: boolean): Lit {
    const { model, tree } = this;
    const shown = (this.shown ??= this.places());
    const marks = reach(model, tree.nodes(item), both ? TO_LEAVES | TO_OUTPUTS : TO_OUTPUTS);
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

  /** The item that each node is seen as: its card, the card it is written in, or a closed group. */
  private places(): Int32Array {
    const { model, tree, open } = this;
    // The outermost closed group around what is in a level; TOP where all are open. Parents come first.
    const hiding = new Int32Array(tree.groups);
    const hidden = (level: number): number => (level === TOP ? TOP : (hiding[level - tree.count] as number));
    for (let g = 0; g < tree.groups; g++) {
      const group = tree.count + g;
      const outer = hidden(tree.levelOf(group));
      hiding[g] = outer !== TOP ? outer : open.has(group) ? TOP : group;
    }
    const shown = new Int32Array(model.count);
    for (let node = 0; node < model.count; node++) {
      const item = tree.folded[node] ? (model.firstUser(node) ?? node) : node;
      const outer = hidden(tree.levelOf(item));
      shown[node] = outer !== TOP ? outer : item;
    }
    return shown;
  }
}
