// What is lit: the way from items to the loss, and from there to the leaves.

import type { Model } from "../graph/model";
import { reach, TO_LEAVES, TO_OUTPUTS } from "../graph/reach";
import type { Tree } from "../graph/tree";

/** On which ways each item lies. */
export type Lit = ReadonlyMap<number, number>;

export class Lighting {
  private shown: Int32Array | null = null;

  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly shownAs: (node: number) => number,
  ) {}

  /** Another picture: nodes may be seen as other items. */
  redrawn(): void {
    this.shown = null;
  }

  /** The items on the way from an item to the outputs; with `both` also to the leaves. */
  ways(item: number, frames: Iterable<number>, both: boolean): Lit {
    const { model, tree } = this;
    const shown = (this.shown ??= Int32Array.from({ length: model.count }, (_, node) => this.shownAs(node)));
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
}
