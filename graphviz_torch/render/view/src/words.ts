// What is said of cards, frames and edges to those who hover, and to those who cannot see.

import { shaped, type Cards } from "./cards";
import type { Words } from "./drawing";
import type { Marks } from "./drawcard";
import { bytes, count, shorten } from "./format";
import type { Model } from "./model";
import type { Cut, Finding } from "./payload";
import type { Path, Stub } from "./scene";
import type { Tree } from "./tree";

const MOST_NAMED = 2;

export class GraphWords implements Words {
  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly cards: Cards,
  ) {}

  card(item: number): Marks {
    const { lines, role } = this.cards.card(item);
    const said = lines.map((line) => line.map(({ text }) => text.trim()).filter(Boolean).join(" ")).join(", ");
    const findings = new Set<Finding>();
    for (const node of this.model.findingsOf.size ? this.tree.nodes(item) : [])
      for (const finding of this.model.findingsOf.get(node) ?? []) findings.add(finding);
    const folded = this.tree.isGroup(item) ? [] : this.model.inputs(item).filter((edge) => this.tree.folded[edge.node]);
    for (const { node } of folded) for (const finding of this.model.findingsOf.get(node) ?? []) findings.add(finding);
    const full = this.tree.isGroup(item) ? this.tree.path(item) : [this.model.text("label", item), this.model.operation(item), this.model.text("module", item)].filter(Boolean).join(" · ");
    return { title: said.includes("…") ? full : "", description: `${role}: ${said}`, findings: [...findings] };
  }

  frame(item: number): { name: string; size: string; width: number } {
    return this.cards.title(item);
  }

  stub({ side, others }: Stub): string {
    if (others.length > MOST_NAMED) return count(others.length, side === "from" ? "user" : "input");
    return others.map((item) => shorten(this.tree.isGroup(item) ? this.tree.name(item) : this.model.caption(item), 14)).join(", ");
  }

  path({ link }: Path): { title: string; label: string; width: number; kind: string } {
    if (!link) return { title: "", label: "", width: 0, kind: "" };
    if (link.cut) return this.cut(link.cut);
    const meta = this.model.outputsOf(link.source)[link.outputNr];
    const several = this.model.outputsOf(link.source).length > 1;
    const parts = [meta ? shaped(meta) : "", several && link.edges === 1 ? `output ${link.outputNr}` : "", link.edges > 1 ? count(link.edges, "edge") : ""];
    const moved = link.way ? `${link.way} · ${bytes(link.bytes)}` : "";
    const title = [...parts, moved].filter(Boolean).join(" · ");
    // Into a copy's own card the way is written on the card.
    const told = this.tree.isGroup(link.to) ? moved : link.way ? bytes(link.bytes) : "";
    const label = told || (several && link.edges === 1 && meta ? shaped(meta) : "");
    return { title, label, width: this.cards.width(label, "quiet"), kind: link.way ? "moved" : "" };
  }

  private cut({ how, where, before, after }: Cut): { title: string; label: string; width: number; kind: string } {
    const name = how === "data" ? ".data" : how.endsWith("_mode") || how === "no_grad" ? how : `${how}()`;
    const label = `✂ ${name}`;
    const told = this.model.findingsOf.get(before ?? -1)?.find(({ nodes }) => after.some((node) => nodes.includes(node)));
    const title = `Cut by ${name}${where ? ` at ${where}` : ""}: no gradient passes here.`;
    return { title, label, width: this.cards.width(label, "quiet"), kind: `severed ${told?.severity ?? ""}` };
  }
}
