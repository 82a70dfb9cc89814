// What is said of cards, frames and edges to those who hover, and to those who cannot see.

import { shaped, type Cards } from "./cards";
import type { Words } from "./drawing";
import type { Marks } from "./drawcard";
import { bytes, count } from "./format";
import type { Model } from "./model";
import type { Finding } from "./payload";
import type { Path } from "./scene";
import type { Tree } from "./tree";

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
    return { description: `${role}: ${said}`, findings: [...findings] };
  }

  frame(item: number): { name: string; size: string } {
    return { name: this.tree.name(item), size: count(this.tree.nodes(item).length, "node") };
  }

  path({ link }: Path): { title: string; label: string } {
    if (!link) return { title: "", label: "" };
    const meta = this.model.outputsOf(link.source)[link.outputNr];
    const several = this.model.outputsOf(link.source).length > 1;
    const parts = [meta ? shaped(meta) : "", several && link.edges === 1 ? `output ${link.outputNr}` : "", link.edges > 1 ? count(link.edges, "edge") : ""];
    const moved = link.way ? `${link.way} · ${bytes(link.bytes)}` : "";
    const title = [...parts, moved].filter(Boolean).join(" · ");
    // Into a copy's own card the way is written on the card.
    const told = this.tree.isGroup(link.to) ? moved : link.way ? bytes(link.bytes) : "";
    return { title, label: told || (several && link.edges === 1 && meta ? shaped(meta) : "") };
  }
}
