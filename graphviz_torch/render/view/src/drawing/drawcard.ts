// Draw a card as SVG: the shape of its role, its lines, the parameters inside, and its marks.

import { type Card, LINE, PADDING, type Span } from "./cards";
import { svg } from "../dom";
import { outlines } from "./forms";
import type { Finding } from "../graph/payload";

export interface Marks {
  /** The full text, if the line is shortened. */
  readonly title: string;
  readonly description: string;
  readonly findings: readonly Finding[];
}

const PARAMETER_SIGN = "M0,2A4,2 0 0 1 8,2V8A4,2 0 0 1 0,8Z";

export function drawCard(card: Card, marks: Marks): SVGGElement {
  const { width, height, role } = card;
  const group = svg("g", { class: `card ${role} ${card.mark}`, "data-item": card.item, role: "img", "aria-label": marks.description });
  if (marks.title) group.append(svg("title", {}, marks.title));
  group.append(...outlines(role, width, height, card.stacked));
  let y = PADDING + LINE - 4 + (role === "parameter" || role === "buffer" ? 6 : 0);
  card.lines.forEach((line, at) => {
    group.append(drawLine(line, width / 2, y, at === 0 ? "first" : "detail"));
    y += LINE;
  });
  if (card.parameters.length) {
    group.append(svg("path", { class: "divider detail", d: `M1,${y - 8}H${width - 1}` }));
    y += 5;
    for (const parameter of card.parameters) {
      const row = svg("g", { class: "inside detail", "data-item": parameter.node, transform: `translate(10,${y})` });
      const texts = drawLine([{ text: parameter.name, look: "quiet" }, { text: parameter.text, look: "mono" }], 14, 0, "start");
      row.append(
        svg("rect", { class: "hit", x: -6, y: -LINE + 4, width: width - 8, height: LINE }),
        svg("path", { class: "sign", d: PARAMETER_SIGN, transform: "translate(0,-9)" }),
        texts,
      );
      group.append(row);
      y += LINE;
    }
    if (card.more > 0) group.append(drawLine([{ text: `and ${card.more} more`, look: "quiet" }], width / 2, y, "detail"));
  }
  if (card.opens) group.append(sign("+", width - 14, 14, "open"));
  const wrong = marks.findings.filter(({ severity }) => severity !== "info"); // like a still picture, a card marks no finding of severity info
  if (wrong.length) group.append(badge(wrong, width));
  return group;
}

function drawLine(line: readonly Span[], x: number, y: number, kind: string): SVGTextElement {
  const text = svg("text", { class: kind, x, y });
  line.forEach(({ text: words, look }, at) => {
    if (words) text.append(svg("tspan", at ? { class: look, dx: 6 } : { class: look }, words));
  });
  return text;
}

/** The button that opens or closes a group. */
export function sign(text: "+" | "−", x: number, y: number, act: "open" | "close"): SVGGElement {
  return svg(
    "g",
    { class: "sign-button", "data-act": act, transform: `translate(${x},${y})` },
    svg("circle", { r: 8 }),
    svg("text", { y: 4.5 }, text),
  );
}

function badge(findings: readonly Finding[], width: number): SVGGElement {
  const worst = findings.some(({ severity }) => severity === "error") ? "error" : "warning";
  return svg(
    "g",
    { class: `badge ${worst}`, transform: `translate(${width - 2},2)` },
    svg("title", {}, findings.map(({ message }) => message).join("\n")),
    svg("path", { d: "M0,-11L10,7H-10Z" }),
    svg("text", { y: 5 }, "!"),
  );
}
