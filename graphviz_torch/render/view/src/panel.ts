// The panel at the side: all that is known about what was clicked, or about the whole graph.

import { shaped } from "./cards";
import { html, button } from "./dom";
import { bytes, count, inLine, number, seconds, tensor } from "./format";
import type { Edge, Gradient, Meta, Model } from "./model";
import { overview } from "./overview";
import type { Finding, Transfer } from "./payload";
import type { Tree } from "./tree";

export interface Leads {
  called(node: number): string;
  node(node: number): void;
  group(item: number): void;
}

type Value = string | Node;

const STATES = ["", "no", "yes"];
const MOST_ROWS = 40;
const MOST_LEADS = 12;

export class Panel {
  readonly element = html("aside", { class: "panel", "aria-label": "Details" });

  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly leads: Leads,
    private readonly close: () => void,
  ) {}

  show(item: number | null): void {
    this.element.replaceChildren(
      ...(item === null ? overview(this.model, this.leads) : this.tree.isGroup(item) ? this.group(item) : this.node(item)),
    );
    this.element.scrollTop = 0;
  }

  private heading(title: string, subtitle: string): HTMLElement {
    return html("header", {}, html("div", {}, html("h2", {}, inLine(title)), html("p", { class: "quiet" }, subtitle)), button("×", "Close details (Esc)", this.close));
  }

  private node(node: number): HTMLElement[] {
    const { model, tree } = this;
    const label = model.text("label", node);
    const parts = [this.heading(model.caption(node), `${label ? `${model.operation(node)} · ` : ""}${model.text("name", node)} · node ${node}`)];
    const findings = model.findingsOf.get(node);
    if (findings) parts.push(...findings.map((finding) => drawFinding(finding)));

    const facts: [string, Value][] = model.outputsOf(node).map((meta, at, all) => [all.length > 1 ? `output ${at}` : "output", meta ? metaText(meta) : "none"]);
    const source = model.text("source", node);
    const module = model.text("module", node);
    const note = model.text("note", node);
    if (module) facts.push(["module", module]);
    const level = tree.levelOf(node);
    if (level >= 0) facts.push(["inside", this.lead(tree.path(level), () => this.leads.group(level))]);
    if (source) facts.push(["line", html("code", {}, source)]);
    if (note) facts.push(["note", note]);
    const order = model.order?.[node] ?? -1;
    if (order >= 0) facts.push(["backward", `step ${(order + 1).toLocaleString("en")}`]);
    const time = model.seconds(node);
    if (!Number.isNaN(time)) facts.push(["time", seconds(time)]);
    const state = model.parameterState[node] as number;
    for (const [at, name] of ["module was called", "has .grad", "in the optimizer"].entries()) {
      const said = STATES[(state >> (2 * at)) & 3];
      if (said) facts.push([name, said]);
    }
    for (const cut of model.cuts)
      if (cut.before === node) facts.push(["cut", `${cut.how}${cut.where ? ` at ${cut.where}` : ""}`]);
    parts.push(table(facts));

    model.gradients(node).forEach((gradient, at, all) => {
      if (gradient) parts.push(section(all.length > 1 ? `Gradient of output ${at}` : "Gradient", table(gradientFacts(gradient))));
    });
    const saved = model.saved(node);
    if (saved.length)
      parts.push(
        section(
          `Saved for backward: ${bytes(model.savedBytes[node] as number)}`,
          table(saved.map(({ name, tensor, nbytes, kind, sharedWith }) => [
            name || kind,
            sharedWith === null
              ? `${shaped(tensor)} · ${bytes(nbytes)} · ${kind}`
              : html("span", {}, `${shaped(tensor)} · counted at `, this.lead(model.caption(sharedWith), () => this.leads.node(sharedWith))),
          ])),
        ),
      );
    const transfers = model.transfersOf.get(node);
    if (transfers) parts.push(section("Transfers", table(transfers.map((transfer) => [transfer.kind, transferText(transfer)]))));
    this.neighbours(parts, "Inputs", model.inputs(node), (edge) => (edge.outputNr ? `output ${edge.outputNr}` : ""));
    this.neighbours(parts, "Users", model.users(node), (edge) => `as input ${edge.inputNr}`);
    return parts;
  }

  private neighbours(parts: HTMLElement[], title: string, edges: readonly Edge[], how: (edge: Edge) => string): void {
    if (!edges.length) return;
    const rows = edges.slice(0, MOST_ROWS).map((edge) => {
      const meta = this.model.firstOutput(edge.node);
      const name = this.model.text("label", edge.node) ? `${this.model.caption(edge.node)} (${this.model.operation(edge.node)})` : this.model.operation(edge.node);
      const said = [meta ? shaped(meta) : "", how(edge)].filter(Boolean).join(" · ");
      return html("li", {}, this.lead(name, () => this.leads.node(edge.node)), html("span", { class: "quiet" }, ` ${said}`));
    });
    if (edges.length > MOST_ROWS) rows.push(html("li", { class: "quiet" }, `and ${edges.length - MOST_ROWS} more`));
    parts.push(section(title, html("ul", {}, ...rows)));
  }

  private group(item: number): HTMLElement[] {
    const { model, tree } = this;
    const nodes = tree.nodes(item);
    const operations = new Map<string, number>();
    const devices = new Set<string>();
    const findings = new Set<Finding>();
    let [kept, time, weights] = [0, Number.NaN, 0];
    for (const node of nodes) {
      if (model.leaf[node]) weights += model.firstOutput(node)?.nbytes ?? 0;
      else operations.set(model.operation(node), (operations.get(model.operation(node)) ?? 0) + 1);
      const meta = model.firstOutput(node);
      if (meta) devices.add(meta.device);
      kept += model.savedBytes[node] as number;
      const spent = model.seconds(node);
      if (!Number.isNaN(spent)) time = (Number.isNaN(time) ? 0 : time) + spent;
      for (const finding of model.findingsOf.get(node) ?? []) findings.add(finding);
    }
    const facts: [string, Value][] = [
      ["nodes", nodes.length.toLocaleString("en")],
      ["devices", [...devices].sort().join(", ")],
    ];
    if (weights) facts.push(["leaves", bytes(weights)]);
    if (kept) facts.push(["saved", bytes(kept)]);
    if (!Number.isNaN(time)) facts.push(["backward time", seconds(time)]);
    if (tree.alikes(item) > 1) {
      const like = tree.like(item) + tree.count;
      facts.push(["alike", html("span", {}, `${tree.alikes(item)} groups, first `, this.lead(tree.path(like), () => this.leads.group(like)))]);
    }
    const most = [...operations].sort((a, b) => b[1] - a[1]).slice(0, 12);
    return [
      this.heading(tree.name(item), `${tree.isModule(item) ? "module call" : "run of nodes"} · ${tree.path(item)}`),
      ...[...findings].map((finding) => drawFinding(finding, this.leads)),
      table(facts),
      section("Operations", table(most.map(([name, times]) => [name, `× ${times.toLocaleString("en")}`]))),
    ];
  }

  private lead(text: string, go: () => void): HTMLElement {
    const element = html("a", { href: "#", role: "button" }, text);
    element.addEventListener("click", (event) => {
      event.preventDefault();
      go();
    });
    return element;
  }
}

export function metaText(meta: Meta): string {
  return `${shaped(meta)} · ${meta.device}${meta.nbytes === null ? "" : ` · ${bytes(meta.nbytes)}`}`;
}

export function transferText({ source, target, nbytes, phase, where, pinned, seconds: time, label }: Transfer): string {
  return [
    label,
    `${source} → ${target}`,
    nbytes === null ? "" : bytes(nbytes),
    phase,
    pinned === null ? "" : pinned ? "pinned" : "pageable",
    time === null ? "" : seconds(time),
    where,
  ]
    .filter(Boolean)
    .join(" · ");
}

function gradientFacts(gradient: Gradient): [string, Value][] {
  const facts: [string, Value][] = [];
  if (gradient.values) {
    const shape = gradient.tensor?.shape ?? [gradient.values.length];
    facts.push(["values", html("code", {}, tensor(gradient.values, shape))]);
  }
  if (gradient.tensor) facts.push(["tensor", metaText(gradient.tensor)]);
  facts.push(["norm", number(gradient.norm)], ["largest", number(gradient.maxAbs)], ["mean", number(gradient.mean)]);
  facts.push(["zeros", `${number(100 * gradient.zeros)} %`]);
  if (gradient.nan) facts.push(["NaN", count(gradient.nan, "element")]);
  if (gradient.inf) facts.push(["Inf", count(gradient.inf, "element")]);
  return facts;
}

export function drawFinding(finding: Finding, leads?: Leads): HTMLElement {
  const text = html("p", { class: "message" }, finding.message);
  const parts: HTMLElement[] = [html("p", { class: "rule" }, `${finding.severity} · ${finding.rule}`), text];
  if (finding.cause) parts.push(html("p", {}, finding.cause));
  if (finding.advice) parts.push(html("p", { class: "advice" }, finding.advice));
  if (finding.where) parts.push(html("p", {}, html("code", {}, finding.where)));
  const box = html("section", { class: `finding ${finding.severity}` }, ...parts);
  if (leads) {
    const shown = finding.nodes.slice(0, MOST_LEADS);
    const nodes: HTMLElement[] = shown.map((node) => button(leads.called(node), "Show this node", () => leads.node(node)));
    if (finding.nodes.length > MOST_LEADS) nodes.push(html("span", { class: "quiet" }, `and ${finding.nodes.length - MOST_LEADS} more`));
    if (nodes.length) box.append(html("p", { class: "leads" }, ...nodes));
  }
  return box;
}

export function section(title: string, ...content: Node[]): HTMLElement {
  return html("section", {}, html("h3", {}, title), ...content);
}

export function table(rows: readonly [string, Value][]): HTMLElement {
  return html("dl", {}, ...rows.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
}
