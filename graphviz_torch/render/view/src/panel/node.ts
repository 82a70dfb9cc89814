// The panel of a node: all its values.

import { html } from "../dom";
import type { Edge, Model } from "../graph/model";
import { findingsAt, type Tree } from "../graph/tree";
import { bytes, isSpoilt, seconds, shaped, tensor } from "../graph/units";
import { say } from "../language";
import { drawCollectives, drawFinding, gradientFacts, lead, type Leads, list, metaText, quiet, section, table, transferText, type Value } from "./facts";

const STATES = ["", "no", "yes"];
const MOST_ROWS = 40;

export function nodeDetails(node: number, model: Model, tree: Tree, leads: Leads): HTMLElement[] {
  const parts = findingsAt(model, tree, node).map((finding) => drawFinding(finding));
  parts.push(table(facts(node, model, tree, leads)));
  const changes = model.changes(node);
  if (changes.length) parts.push(section(say("Changed"), table(changes.map(({ what, before, after }) => [what, `${before} → ${after}`]))));
  model.gradients(node).forEach((gradient, at, all) => {
    if (gradient) parts.push(section(say(all.length > 1 ? "Gradient of output {}" : "Gradient", at), table(gradientFacts(gradient))));
  });
  const saved = model.saved(node);
  if (saved.length) {
    const rows = saved.map(({ name, tensor, nbytes, kind, sharedWith }): [string, Value] => {
      if (sharedWith === null) return [name || kind, `${shaped(tensor)} · ${bytes(nbytes)} · ${kind}`];
      return [name || kind, html("span", {}, `${shaped(tensor)} · counted at `, lead(model.caption(sharedWith), sharedWith, leads))];
    });
    parts.push(section(say("Saved for backward: {}", bytes(model.savedBytes[node] as number)), table(rows)));
  }
  const transfers = model.transfersOf.get(node);
  if (transfers) parts.push(section(say("Transfers"), table(transfers.map((transfer) => [transfer.kind, transferText(transfer)]))));
  parts.push(...drawCollectives(model.collectivesOf.get(node) ?? []));
  const neighbours = (title: string, edges: readonly Edge[], how: (edge: Edge) => string): void => {
    if (edges.length) parts.push(section(say(title), list(edges, MOST_ROWS, (edge) => neighbour(edge.node, how(edge), model, leads))));
  };
  neighbours("Inputs", model.inputs(node), (edge) => (edge.outputNr ? `output ${edge.outputNr}` : ""));
  neighbours("Users", model.users(node), (edge) => `as input ${edge.inputNr}`);
  return parts;
}

function facts(node: number, model: Model, tree: Tree, leads: Leads): [string, Value][] {
  const rows: [string, Value][] = model
    .outputsOf(node)
    .map((meta, at, all) => [all.length > 1 ? `output ${at}` : "output", meta ? metaText(meta) : "none"]);
  model.values(node).forEach((values, at, all) => {
    if (!values) return;
    const text = tensor(values, model.outputsOf(node)[at]?.shape ?? [values.length]);
    rows.push([all.length > 1 ? `value ${at}` : "value", html("code", isSpoilt(values) ? { class: "wrong" } : {}, text)]);
  });
  const mark = model.mark(node);
  if (mark) rows.unshift(["difference", mark]);
  const [module, source, note] = [model.text("module", node), model.text("where", node), model.text("note", node)];
  const found = model.classOf(node);
  if (module) rows.push(["module", found ? `${module} · ${found}` : module]);
  for (const [name, text] of model.recorded(node)) rows.push([`module's ${name}`, text]);
  for (const attribute of model.attributes(node)) {
    const [name = "", ...value] = attribute.split("=");
    rows.push([name, value.join("=")]);
  }
  const level = tree.levelOf(node);
  if (level >= 0) rows.push(["inside", lead(tree.path(level), level, leads)]);
  if (source) rows.push(["line", html("code", {}, source)]);
  if (note) rows.push(["note", note]);
  const order = model.order?.[node] ?? -1;
  if (order >= 0) rows.push(["backward", `step ${(order + 1).toLocaleString("en")}`]);
  const time = model.seconds(node);
  if (!Number.isNaN(time)) rows.push(["time", seconds(time)]);
  const state = model.parameterState[node] as number;
  for (const [at, name] of ["module was called", "has .grad", "in the optimizer"].entries()) {
    const said = STATES[(state >> (2 * at)) & 3];
    if (said) rows.push([name, said]);
  }
  for (const { how, before, after, where, label } of model.cuts) {
    const at = `${how}${where ? ` at ${where}` : ""}`;
    if (before === node) rows.push(["cut", at]);
    else if (after.includes(node)) rows.push(["uses", `${label || "a result"} cut by ${at}`]);
  }
  return rows;
}

function neighbour(node: number, how: string, model: Model, leads: Leads): Value[] {
  const meta = model.firstOutput(node);
  const name = model.text("label", node) ? `${model.caption(node)} (${model.operation(node)})` : model.operation(node);
  const said = [meta ? shaped(meta) : "", how].filter(Boolean).join(" · ");
  return [lead(name, node, leads), quiet(` ${said}`)];
}
