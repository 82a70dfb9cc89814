// The lines of text on an item's card, and the size of the card.

import { BUFFER, DATA, type Model, PARAMETER, UNTRACKED } from "../graph/model";
import type { Mark, Transfer } from "../graph/payload";
import type { Tree } from "../graph/tree";
import { bytes, count, isSpoilt, number, shaped, shorten, tensor } from "../graph/units";
import { spread } from "../graph/spread";

/** The role of an item; "failed" is an operation that raised an exception. */
export type Role = "input" | "parameter" | "buffer" | "operation" | "transfer" | "collective" | "output" | "group" | "failed" | "data" | "untracked";

export interface Span {
  readonly text: string;
  readonly look: "strong" | "plain" | "mono" | "wrong" | "quiet";
}

export interface Card {
  readonly item: number;
  readonly role: Role;
  /** The node's difference between two graphs; "" if there is none, and for a group. */
  readonly mark: Mark | "";
  /** True for a closed group. */
  readonly opens: boolean;
  /** True for a stack of several identical groups. */
  readonly stacked: boolean;
  readonly lines: Span[][];
  /** The parameters that are written inside the card: node, name and further text. */
  readonly parameters: { node: number; name: string; text: string }[];
  readonly more: number;
  readonly width: number;
  readonly height: number;
}

export const LINE = 16;
export const PADDING = 8;
export const TITLE_LEFT = 28;
const TITLE_RIGHT = 10;
const MOST_LABEL = 26;
const MOST_NAME = 32;
const MOST_MODULE = 18;
const MOST_TEXT = 30;
const MOST_SENT = 60;
const MOST_VALUE = 48;
/** Maximum number of elements of a value or gradient that a card writes, as in a still picture. */
const FEW = 4;
const MOST_JOINT = 220; // maximum width in pixels of a line that has both shape and gradient
const MOST_PARAMETERS = 4;
const MOST_CHANGES = 3;
const MOST_COPIES = 2;
const MOST_CHANGE = 44;
export const SIGNS: Record<Mark, string> = { added: "+", removed: "−", changed: "~" };
const FONTS = {
  strong: "600 13px system-ui, sans-serif",
  plain: "13px system-ui, sans-serif",
  mono: "11px ui-monospace, monospace",
  wrong: "11px ui-monospace, monospace",
  quiet: "11px system-ui, sans-serif",
};
/** Space beside the text in pixels: for the corners of a hexagon, the ends of a pill, a group's button. */
const RIMS: Partial<Record<Role, number>> = { transfer: 34, collective: 40, input: 30, group: 58 };

export class Cards {
  private readonly known = new Map<number, Card>();
  private readonly context = document.createElement("canvas").getContext("2d") as CanvasRenderingContext2D;
  private readonly widths = new Map<string, number>();
  private readonly severalDevices: boolean;

  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
  ) {
    this.severalDevices = new Set(model.metas.map((meta) => meta.device)).size > 1 || model.count <= 50;
  }

  card(item: number): Card {
    let card = this.known.get(item);
    if (!card) this.known.set(item, (card = this.tree.isGroup(item) ? this.group(item) : this.node(item)));
    return card;
  }

  role(node: number): Role {
    const { model } = this;
    if (node === model.failed) return "failed";
    const leaf = model.leaf[node];
    if (leaf === DATA || leaf === UNTRACKED) return leaf === DATA ? "data" : "untracked";
    if (leaf) return leaf === PARAMETER ? "parameter" : leaf === BUFFER ? "buffer" : "input";
    if (model.isTransfer(node)) return "transfer";
    if (model.sending(node).length) return "collective";
    return model.outputs.has(node) ? "output" : "operation";
  }

  /** The roles of items, and of the parameters written inside them. */
  roles(items: Iterable<number>): Set<Role> {
    const found = new Set<Role>();
    for (const item of items) {
      const { role, parameters } = this.card(item);
      found.add(role);
      for (const { node } of parameters) found.add(this.role(node));
    }
    return found;
  }

  private node(node: number): Card {
    const { model, tree } = this;
    const label = model.text("label", node);
    const role = this.role(node);
    const name = model.leaf[node] ? (label ? "" : role) : tree.loneCall(node) || model.described(node);
    const module = tree.loneModule(node);
    const first = label || (module && named(module, model.classOf(node)));
    const lines: Span[][] = [
      [
        ...(first ? [{ text: shorten(first, label ? MOST_LABEL : MOST_NAME), look: "strong" as const }] : []),
        ...(name && (label || !module) ? [{ text: shorten(name, MOST_NAME), look: label ? ("plain" as const) : ("strong" as const) }] : []),
      ],
    ];
    if (label && module) lines[0]?.push({ text: shorten(module, MOST_MODULE), look: "quiet" });
    if (role === "failed") lines.push(...this.failure());
    const transfers = model.transfersOf.get(node) ?? [];
    const outputs = model.outputsOf(node);
    const made = model.firstOutput(tree.result(node));
    if (made) {
      const others = outputs.length > 1 ? `  1 of ${outputs.length}` : "";
      const device = this.severalDevices && role !== "transfer" ? `  ${made.device}` : "";
      lines.push([{ text: shorten(shaped(made), MOST_TEXT + 6), look: "mono" }, { text: shorten(device + others, MOST_TEXT), look: "quiet" }]);
    }
    if (role === "transfer" && made) {
      const source = model.inputs(node).map((edge) => model.firstOutput(edge.node)?.device).find(Boolean) ?? "?";
      lines.push([copied(transfers[0] ?? { source, target: made.device, nbytes: made.nbytes })]);
    }
    if (role === "data" || role === "untracked") lines.push(...transfers.slice(0, MOST_COPIES).map((transfer) => [copied(transfer)]));
    for (const line of model.sending(node)) lines.push([{ text: shorten(line, MOST_SENT), look: "quiet" }]);
    if (role === "untracked" && model.text("note", node)) lines.push([{ text: shorten(model.text("note", node), MOST_SENT), look: "quiet" }]);
    lines.push(...this.values(node));
    this.beside(lines, this.gradient(node));
    const mark = model.mark(node);
    if (mark) lines.push([{ text: `${SIGNS[mark]} ${mark}`, look: "strong" }]);
    for (const { what, before, after } of model.changes(node).slice(0, MOST_CHANGES))
      lines.push([{ text: shorten(`${what} ${opening(before)} → ${opening(after)}`, MOST_CHANGE), look: "quiet" }]);

    return this.sized({ item: node, role, mark, opens: false, stacked: false, lines, ...this.written(tree.written(model, node)) });
  }

  /** The parameters whose names the card shows, and the number of the others. */
  private written(leaves: readonly number[]): Pick<Card, "parameters" | "more"> {
    const parameters = leaves.slice(0, MOST_PARAMETERS).map((node) => {
      const meta = this.model.firstOutput(node);
      const path = this.model.text("label", node);
      return { node, name: shorten(path.slice(path.lastIndexOf(".") + 1) || "parameter", 18), text: meta ? shaped(meta) : "" };
    });
    return { parameters, more: leaves.length - parameters.length };
  }

  private values(node: number): Span[][] {
    const outputs = this.model.outputsOf(node);
    return this.model.values(node).flatMap((values, at): Span[][] => {
      if (!values || (values.length > FEW && !isSpoilt(values))) return [];
      const text = `value ${tensor(values, outputs[at]?.shape ?? [values.length])}`;
      return [[{ text: shorten(text, MOST_VALUE), look: isSpoilt(values) ? "wrong" : "mono" }]];
    });
  }

  /** Append spans to the last line if they fit beside its text; otherwise start a new line. */
  private beside(lines: Span[][], spans: Span[]): void {
    if (!spans.length) return;
    const [title, last] = [lines[0] ?? [], lines.at(-1) ?? []];
    const joint = [...last.filter(({ text }) => text), ...spans];
    if (lines.length > 1 && this.measure(joint) <= Math.max(MOST_JOINT, this.measure(title))) lines[lines.length - 1] = joint;
    else lines.push(spans);
  }

  private gradient(node: number): Span[] {
    const found = this.model.gradients(node).find((gradient) => gradient !== null);
    if (!found) return [];
    if (found.nan + found.inf) {
      const counts = [found.nan && `${found.nan} NaN`, found.inf && `${found.inf} Inf`].filter(Boolean).join(", ");
      return [{ text: `grad ${counts}`, look: "wrong" }];
    }
    const few = found.values && found.values.length <= FEW;
    const text = few && found.values ? tensor(found.values, found.tensor?.shape ?? [found.values.length]) : `norm ${number(found.norm)}`;
    return [{ text: `grad ${text}${!few && found.extent ? ` of the ${found.extent}` : ""}`, look: "mono" }];
  }

  private failure(): Span[][] {
    const { failure } = this.model;
    const texts = failure ? [`⚠ ${failure.error}`, failure.where] : [];
    return texts.filter(Boolean).map((text) => [{ text: shorten(text, MOST_TEXT), look: "quiet" }]);
  }

  private group(item: number): Card {
    const { tree } = this;
    const alike = tree.alikes(item);
    const nodes = tree.nodes(item);
    const gradients = this.range(nodes);
    const marks = this.model.marked(nodes);
    const unit = tree.isUnit(item);
    const last = nodes.filter((node) => !this.model.leaf[node]).sort().at(-1);
    const made = unit && last !== undefined ? this.model.firstOutput(last) : null;
    const size: Span[] = made ? [{ text: shorten(shaped(made), MOST_TEXT + 6), look: "mono" }] : [{ text: count(nodes.length, "node"), look: "quiet" }];
    if (alike > 1 && !unit) size.push({ text: `· 1 of ${alike} alike`, look: "quiet" });
    const outputs = nodes.filter((node) => this.model.outputs.has(node));
    const output = outputs.length ? this.model.caption(outputs[0] as number) : "";
    const name = unit && output ? `${output} · ${this.called(item)}` : this.called(item);
    const lines: Span[][] = [[{ text: shorten(name, MOST_TEXT), look: "strong" }], size];
    if (output && !unit) lines.push([{ text: shorten(`${output} inside`, MOST_TEXT), look: "strong" }]);
    if (made && last !== undefined) {
      lines.push(...this.values(last));
      this.beside(lines, this.gradient(last));
    } else if (gradients) this.beside(lines, [{ text: `grad norm ${gradients}`, look: "mono" }]);
    if (marks) lines.push([{ text: marks, look: "strong" }]);
    return this.sized({
      item,
      role: !unit ? "group" : output ? "output" : "operation",
      mark: "",
      opens: true,
      stacked: tree.isStack(item),
      lines,
      ...this.written(unit ? [...nodes].filter((node) => this.model.leaf[node] && tree.folded[node]) : []),
    });
  }

  /** The range of the gradient norms in a group, as text. */
  private range(nodes: Uint32Array): string {
    if (!this.model.recordedGradients) return "";
    const spoilt = this.model.recordedNonfinite ? nodes.reduce((sum, node) => sum + this.model.nonfinite(node), 0) : 0;
    if (spoilt) return `${spoilt.toLocaleString("en")} NaN or Inf`;
    const { low, high } = spread(this.model, nodes);
    if (Number.isNaN(low)) return "";
    return low === high ? number(low) : `${number(low)} to ${number(high)}`;
  }

  /** The title of the frame of an open group. */
  title(group: number): { name: string; size: string; width: number } {
    const name = shorten(this.called(group), MOST_TEXT);
    const size = count(this.tree.nodes(group).length, "node");
    return { name, size, width: TITLE_LEFT + this.width(name, "strong") + 8 + this.width(size, "quiet") + TITLE_RIGHT };
  }

  /** The name of a group and the class of its module. */
  private called(group: number): string {
    const name = this.tree.name(group);
    const found = this.tree.classOf(group);
    if (!this.tree.isStack(group)) return named(name, found);
    const inside = this.tree.items(group);
    const kind = this.tree.isGroup(inside[0] as number) ? this.tree.classOf(inside[0] as number) : "";
    return `${name} · ${inside.length} × ${kind || "alike"}`;
  }

  private sized(card: Omit<Card, "width" | "height">): Card {
    const wide = card.lines.map((line) => this.measure(line));
    for (const { name, text } of card.parameters)
      wide.push(this.measure([{ text: name, look: "quiet" }, { text, look: "mono" }]) + 14);
    const rows = card.lines.length + card.parameters.length + Number(card.more > 0);
    const rim = (card.opens ? RIMS.group : RIMS[card.role]) ?? 22;
    const height = rows * LINE + 2 * PADDING + (card.parameters.length ? 7 : 0);
    return { ...card, width: Math.max(64, Math.ceil(Math.max(...wide) / 4) * 4 + rim), height: height + (card.role === "parameter" ? 6 : 0) };
  }

  private measure(line: readonly Span[]): number {
    return line.reduce((sum, { text, look }) => sum + this.width(text, look), 0) + 6 * (line.length - 1);
  }

  width(text: string, look: Span["look"]): number {
    const key = `${look} ${text}`;
    let width = this.widths.get(key);
    if (width === undefined) {
      this.context.font = FONTS[look];
      this.widths.set(key, (width = this.context.measureText(text).width));
    }
    return width;
  }
}

/** A copy between devices: "cpu → cuda:0 · 160 B". */
function copied({ source, target, nbytes }: Pick<Transfer, "source" | "target" | "nbytes">): Span {
  return { text: `${source} → ${target}${nbytes === null ? "" : ` · ${bytes(nbytes)}`}`, look: "quiet" };
}

/** The class alone if the name is the class: a model that is not part of another has no name, but its calls have numbers. */
function named(name: string, kind: string): string {
  if (name.split("#")[0] === kind) return name;
  if (!kind || kind.split("(")[0] === name) return kind || name;
  return `${name} · ${kind}`;
}

/** The first part of "norm 2.4, max 1.0"; the panel shows the whole text. */
function opening(text: string): string {
  return text.split(/, (?=[a-z])/)[0] as string;
}
