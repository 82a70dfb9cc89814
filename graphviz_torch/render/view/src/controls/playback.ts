// The playback of backward: its current step, for nodes and for closed groups.

import type { Model } from "../graph/model";
import type { Tree } from "../graph/tree";

export class Playback {
  readonly recorded: boolean;
  readonly steps: number;
  /** Number of nodes that have run; null while everything is shown. */
  step: number | null = null;
  private readonly position: Int32Array; // node -> position in the run; -1 if the node does not run
  private readonly node: Int32Array; // position in the run -> node
  private readonly sorted = new Map<number, Int32Array>();

  constructor(
    model: Model,
    private readonly tree: Tree,
  ) {
    const { count, order } = model;
    this.recorded = order !== null;
    const real = count - Number(model.failed !== null); // the operation that raised an exception has no backward
    let last = -1;
    if (order) for (let node = 0; node < real; node++) last = Math.max(last, order[node] as number);
    // Without a recorded order, users before inputs is one possible order of backward.
    else last = real - 1;
    const at = new Int32Array(last + 1).fill(-1);
    for (let node = 0; node < real; node++) {
      const place = order ? (order[node] as number) : real - 1 - node;
      if (place >= 0) at[place] = node;
    }
    this.node = at.filter((node) => node >= 0);
    this.steps = this.node.length;
    this.position = new Int32Array(count).fill(-1);
    this.node.forEach((node, place) => {
      this.position[node] = place;
    });
  }

  /** The node that ran last in the playback. */
  get current(): number | null {
    return this.step ? (this.node[this.step - 1] as number) : null;
  }

  positionOf(node: number): number {
    return this.position[node] as number;
  }

  /** Fraction of an item's nodes that have run. */
  done(item: number): number {
    const step = this.step ?? this.steps;
    if (!this.tree.isGroup(item)) return Number((this.position[item] as number) < step && (this.position[item] as number) >= 0);
    let order = this.sorted.get(item);
    if (!order) {
      order = Int32Array.from(this.tree.nodes(item), (node) => this.position[node] as number).filter((at) => at >= 0).sort();
      this.sorted.set(item, order);
    }
    let [low, high] = [0, order.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((order[middle] as number) < step) low = middle + 1;
      else high = middle;
    }
    return order.length ? low / order.length : 0;
  }
}
