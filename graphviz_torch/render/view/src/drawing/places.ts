// Find the card and the box that show a node or a group.

import type { Model } from "../graph/model";
import { TOP, type Tree } from "../graph/tree";
import type { Box } from "./camera";
import type { Scene } from "./scene";

export class Places {
  private scene: Scene | null = null;
  private known: Int32Array | null = null;

  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly open: ReadonlySet<number>,
  ) {}

  /** Handle a new picture, in which nodes may be shown by other items. */
  redrawn(scene: Scene): void {
    this.scene = scene;
    this.known = null;
  }

  /** The item whose card shows a node. For a parameter that is written inside, this is the first user. */
  carrier(item: number): number {
    return this.tree.isGroup(item) ? item : this.tree.host(item);
  }

  /** The item that currently shows a node or group. */
  shown(item: number): number {
    const carrier = this.carrier(item);
    let shown = carrier;
    for (const level of this.tree.around(carrier)) if (!this.open.has(level)) shown = level;
    return shown;
  }

  /** Node -> the item that currently shows the node. */
  get all(): Int32Array {
    return (this.known ??= this.everywhere());
  }

  /** The box of an item's card, or of the frame of an open group. */
  where(item: number): Box | null {
    const frame = this.scene?.frames.find((one) => one.item === item);
    if (frame) return frame;
    const found = this.scene?.cards.find(({ card }) => card.item === item);
    return found ? { x: found.x, y: found.y, width: found.card.width, height: found.card.height } : null;
  }

  /** The card that shows the first output. */
  get end(): Box | null {
    const [output] = this.model.outputs;
    return output === undefined ? null : this.where(this.shown(output));
  }

  private everywhere(): Int32Array {
    const { model, tree, open } = this;
    // Level -> the outermost closed group that contains it; TOP if all are open. Parents come before children.
    const hiding = new Int32Array(tree.groups);
    const hidden = (level: number): number => (level === TOP ? TOP : (hiding[level - tree.count] as number));
    for (let g = 0; g < tree.groups; g++) {
      const group = tree.count + g;
      const outer = hidden(tree.levelOf(group));
      hiding[g] = outer !== TOP ? outer : open.has(group) ? TOP : group;
    }
    const shown = new Int32Array(model.count);
    for (let node = 0; node < model.count; node++) {
      const item = this.carrier(node);
      const outer = hidden(tree.levelOf(item));
      shown[node] = outer !== TOP ? outer : item;
    }
    return shown;
  }
}
