// The side panel: details of the selected item, or of the whole graph.

import { button, html } from "../dom";
import { say } from "../language";
import type { Model } from "../graph/model";
import type { Tree } from "../graph/tree";
import { inLine } from "../graph/units";
import { lead, type Leads } from "./facts";
import { groupDetails } from "./group";
import { nodeDetails } from "./node";
import { overview } from "./overview";

export class Panel {
  readonly element = html("aside", { class: "panel", "aria-label": say("Details"), tabindex: 0 });

  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly leads: Leads,
    private readonly close: () => void,
  ) {}

  show(item: number | null): void {
    const { model, tree, leads } = this;
    if (item === null) this.element.replaceChildren(...overview(model, leads));
    else if (tree.isGroup(item)) this.element.replaceChildren(this.groupHeading(item), ...groupDetails(item, model, tree, leads));
    else this.element.replaceChildren(this.nodeHeading(item), ...nodeDetails(item, model, tree, leads));
    this.element.scrollTop = 0;
  }

  private nodeHeading(node: number): HTMLElement {
    const { model } = this;
    if (node === model.failed) return this.heading(model.operation(node), "raised an exception: it has no node");
    const operation = model.text("label", node) ? `${model.operation(node)} · ` : "";
    const number = this.leads.address(node) ? lead(`node ${node}`, node, this.leads) : `node ${node}`;
    const [label, module] = [model.text("label", node), this.tree.loneModule(node)];
    if (label || !module) return this.heading(model.caption(node), `${operation}${model.text("name", node)} · `, number);
    return this.heading([module, model.classOf(node)].filter(Boolean).join(" · "), `${model.caption(node)} · ${model.text("name", node)} · `, number);
  }

  private groupHeading(item: number): HTMLElement {
    const { tree } = this;
    const found = tree.classOf(item);
    const kind = tree.isPart(item) ? "graph" : tree.isModule(item) ? "module call" : tree.isChain(item) ? "in sequence" : "run of nodes";
    return this.heading(tree.name(item), `${found || kind} · ${tree.path(item)}`);
  }

  private heading(title: string, ...subtitle: (string | Node)[]): HTMLElement {
    return html("header", {}, html("div", {}, html("h2", {}, inLine(title)), html("p", { class: "quiet" }, ...subtitle)), button("×", say("Close details (Esc)"), this.close));
  }
}
