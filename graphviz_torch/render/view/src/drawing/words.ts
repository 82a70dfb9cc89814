// Compose tooltips and texts for screen readers, for cards, frames and edges.

import { type Cards, SIGNS } from "./cards";
import type { EdgeWords, Words } from "./drawing";
import type { Marks } from "./drawcard";
import { bytes, count, shaped, shorten } from "../graph/units";
import type { Model } from "../graph/model";
import type { Cut } from "../graph/payload";
import type { Path, Stub } from "./scene";
import { findingsAt, type Tree } from "../graph/tree";

const MOST_NAMED = 2;
const MOST_WHERE = 40; // most characters of a cut's source line
const NEAR = 160; // maximum length in pixels of an edge at whose middle a reader sees the source

export class GraphWords implements Words {
  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly cards: Cards,
  ) {}

  card(item: number): Marks {
    const { lines, role } = this.cards.card(item);
    const said = lines.map((line) => line.map(({ text }) => text.trim()).filter(Boolean).join(" ")).join(", ");
    const full = this.tree.isGroup(item) ? this.tree.path(item) : [this.model.text("label", item), this.model.operation(item), this.model.text("module", item)].filter(Boolean).join(" · ");
    return { title: said.includes("…") ? full : "", description: `${role}: ${said}`, findings: findingsAt(this.model, this.tree, item) };
  }

  frame(item: number): { name: string; size: string; width: number } {
    return this.cards.title(item);
  }

  stub({ side, others }: Stub): string {
    if (others.length > MOST_NAMED) return count(others.length, side === "from" ? "user" : "input");
    return others.map((item) => shorten(this.tree.isGroup(item) ? this.tree.name(item) : this.model.caption(item), 14)).join(", ");
  }

  path({ link, points }: Path): EdgeWords {
    if (!link) return { title: "", label: "", width: 0, always: false, kind: "" };
    if (link.cut) return this.cut(link.cut);
    const meta = link.meta === null ? null : (this.model.metas[link.meta] ?? null);
    const several = this.model.outputsOf(link.source).length > 1;
    const shape = meta ? shaped(meta) : "";
    const edges = link.edges > 1 ? count(link.edges, "edge") : "";
    const moved = link.way ? `${link.way} · ${bytes(link.bytes)}` : "";
    const title = [link.mark, shape, several && !edges ? `output ${link.outputNr}` : "", edges, moved].filter(Boolean).join(" · ");
    // The card of a copy already shows its devices.
    const way = this.tree.isGroup(link.to) ? moved : link.way ? bytes(link.bytes) : "";
    // The source's card shows the shape, which the edge repeats only if the card is far away.
    const said = link.from < this.model.count && !several && length(points) < NEAR;
    const mark = link.mark && `${SIGNS[link.mark]} ${link.mark}`;
    const label = way || mark || (said ? "" : [shape, edges].filter(Boolean).join(" · "));
    const kind = link.to === this.model.failed ? "failing" : `${link.way ? "moved" : ""} ${link.mark}`;
    return { title, label, width: this.cards.width(label, "quiet"), always: Boolean(way || mark), kind };
  }

  private cut({ how, where, before, after }: Cut): EdgeWords {
    const name = how === "data" ? ".data" : how.endsWith("_mode") || how === "no_grad" ? how : `${how}()`;
    const label = `✂ ${name}${where ? ` · ${shorten(where, MOST_WHERE)}` : ""}`;
    const told = this.model.findingsOf.get(before ?? -1)?.find(({ nodes }) => after.some((node) => nodes.includes(node)));
    const title = `Cut by ${name}${where ? ` at ${where}` : ""}: no gradient passes here.`;
    return { title, label, width: this.cards.width(label, "quiet"), always: true, kind: `severed ${told?.severity ?? ""}` };
  }
}

function length(points: readonly number[]): number {
  let sum = 0;
  for (let at = 2; at < points.length; at += 2)
    sum += Math.hypot((points[at] as number) - (points[at - 2] as number), (points[at + 1] as number) - (points[at - 1] as number));
  return sum;
}
