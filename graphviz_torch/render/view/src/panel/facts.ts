// Elements of the panel: tables, sections, links to nodes, findings.

import { button, html } from "../dom";
import { say } from "../language";
import type { Gradient, Meta } from "../graph/model";
import type { Collective, Finding, Transfer } from "../graph/payload";
import { bytes, count, number, seconds, shaped, tensor } from "../graph/units";

export type Value = string | Node;

/** The texts, addresses and actions of links in the panel. */
export interface Leads {
  /** The text of a link to a node. */
  called(node: number): string;
  /** The page address of an item; "" if it has none. */
  address(item: number): string;
  go(item: number): void;
}

const MOST_LEADS = 12;
const MOST_SENT = 100;

export function section(title: string, ...content: Node[]): HTMLElement {
  return html("section", {}, html("h3", {}, title), ...content);
}

export function table(rows: readonly [string, Value][]): HTMLElement {
  return html("dl", {}, ...rows.flatMap(([name, value]) => [html("dt", {}, say(name)), html("dd", {}, value)]));
}

/** A list of at most `most` rows, followed by the number of further rows. */
export function list<Row>(rows: readonly Row[], most: number, draw: (row: Row) => Value[]): HTMLElement {
  const items = rows.slice(0, most).map((row) => html("li", {}, ...draw(row)));
  if (rows.length > most) items.push(html("li", { class: "quiet" }, say("and {} more", (rows.length - most).toLocaleString("en"))));
  return html("ul", {}, ...items);
}

export function quiet(text: string): HTMLElement {
  return html("span", { class: "quiet" }, text);
}

/** A link to a node or group. */
export function lead(text: string, item: number, leads: Leads): HTMLElement {
  const element = html("a", { href: leads.address(item) || "#", ...(leads.address(item) ? {} : { role: "button" }) }, text);
  element.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    leads.go(item);
  });
  return element;
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

/** The section of collectives; [] if there are none. */
export function drawCollectives(sent: readonly Collective[], leads?: Leads): HTMLElement[] {
  if (!sent.length) return [];
  const rows = list(sent, MOST_SENT, ({ kind, node, text }) => [
    leads && node !== null ? lead(kind, node, leads) : html("span", {}, kind),
    quiet(` ${text}`),
  ]);
  return [section(say("Between ranks ({})", sent.length), rows)];
}

export function gradientFacts(gradient: Gradient): [string, Value][] {
  const facts: [string, Value][] = [];
  if (gradient.values) {
    const shape = gradient.tensor?.shape ?? [gradient.values.length];
    facts.push(["values", html("code", {}, tensor(gradient.values, shape))]);
  }
  if (gradient.tensor) facts.push(["tensor", metaText(gradient.tensor)]);
  if (gradient.extent) facts.push(["of the", gradient.extent]);
  facts.push(["norm", number(gradient.norm)], ["largest", number(gradient.maxAbs)], ["mean", number(gradient.mean)]);
  facts.push(["zeros", `${number(100 * gradient.zeros)} %`]);
  if (gradient.nan) facts.push(["NaN", count(gradient.nan, "element")]);
  if (gradient.inf) facts.push(["Inf", count(gradient.inf, "element")]);
  return facts;
}

/** A finding; with `leads`, also a link to each node of the finding. */
export function drawFinding(finding: Finding, leads?: Leads): HTMLElement {
  const text = html("p", { class: "message" }, finding.message);
  const parts: HTMLElement[] = [html("p", { class: "rule" }, `${say(finding.severity)} · ${finding.rule}`), text];
  if (finding.cause) parts.push(html("p", {}, finding.cause));
  if (finding.advice) parts.push(html("p", { class: "advice" }, finding.advice));
  if (finding.where) parts.push(html("p", {}, html("code", {}, finding.where)));
  const box = html("section", { class: `finding ${finding.severity}` }, ...parts);
  if (leads && finding.nodes.length) {
    const chips: HTMLElement[] = finding.nodes.slice(0, MOST_LEADS).map((node) => {
      const called = leads.called(node);
      return button(called, say("Show {}", called), () => leads.go(node));
    });
    if (finding.nodes.length > MOST_LEADS) chips.push(quiet(say("and {} more", finding.nodes.length - MOST_LEADS)));
    box.append(html("p", { class: "leads" }, ...chips));
  }
  return box;
}
