// The panel without a selection: counts, differences, findings and transfers of the graph.

import { html } from "../dom";
import { say, titled } from "../language";
import type { Model } from "../graph/model";
import type { Transfer } from "../graph/payload";
import { bytes, seconds } from "../graph/units";
import { drawCollectives, drawFinding, lead, type Leads, list, quiet, section, table, transferText, type Value } from "./facts";

const MOST_ROWS = 100;

export function overview(model: Model, leads: Leads): HTMLElement[] {
  const parts = [html("header", {}, html("div", {}, html("h2", {}, titled(model.title)), html("p", { class: "quiet" }, numbers(model))))];
  if (model.failure && !model.payload.header.failureTold) {
    const { error, message, where, node } = model.failure;
    const nodes = node === null ? [] : [node];
    parts.push(drawFinding({ rule: error, severity: "error", message, advice: "", cause: "", where, nodes, transfers: [] }, leads));
  }
  parts.push(table(facts(model)));
  if (model.difference) parts.push(...differences(model, leads));
  if (model.findings.length) parts.push(section(say("Findings ({})", model.findings.length), ...model.findings.map((finding) => drawFinding(finding, leads))));
  if (model.transfers.length) {
    const rows = list(model.transfers, MOST_ROWS, (transfer) => transferRow(transfer, leads));
    parts.push(section(say("Transfers ({})", model.transfers.length), rows));
  }
  parts.push(...drawCollectives(model.collectives, leads));
  const ranks = model.payload.header.ranks;
  if (ranks) {
    const waits = list(ranks.waits, MOST_ROWS, (text) => [text]);
    parts.push(section(say("Ranks over time"), html("img", { src: ranks.image, alt: "When each rank stood in a collective", class: "chart" }), waits));
  }
  return parts;
}

function numbers(model: Model): string {
  const real = model.payload.header.tracked - Number(model.failed !== null);
  let leaves = 0;
  for (let node = 0; node < real; node++) leaves += Number(model.leaf[node] !== 0);
  return say(real === 1 ? "{} node, {} of them leaves" : "{} nodes, {} of them leaves", real.toLocaleString("en"), leaves.toLocaleString("en"));
}

function facts(model: Model): [string, string][] {
  const devices = new Set(model.metas.map((meta) => meta.device));
  const rows: [string, string][] = [["devices", [...devices].sort().join(", ")]];
  for (const [kind, size] of model.savedByKind()) rows.push([`saved ${kind}s`, bytes(size)]);
  if (model.recordedSeconds) {
    let sum = 0;
    for (let node = 0; node < model.count; node++) sum += model.seconds(node) || 0;
    rows.push(["backward time", `${seconds(sum)} in total`]);
  }
  if (model.transfers.length) {
    const moved = model.transfers.reduce((sum, { nbytes }) => sum + (nbytes ?? 0), 0);
    rows.push(["moved between devices", bytes(moved)]);
  }
  if (model.collectives.length) rows.push(["sent to other ranks", bytes(model.collectives.reduce((sum, { nbytes }) => sum + nbytes, 0))]);
  if (model.lossScale !== null) rows.push(["loss scale", `gradients are multiplied by ${model.lossScale}`]);
  return rows;
}

function differences(model: Model, leads: Leads): HTMLElement[] {
  const { marks, edges } = model.difference as NonNullable<Model["difference"]>;
  const parts = [];
  for (const kind of ["removed", "added", "changed"] as const) {
    const nodes = marks.filter(([, mark]) => mark === kind).map(([node]) => node);
    if (!nodes.length) continue;
    const row = (node: number): Value[] => {
      const changes = model.changes(node).map(({ what, before, after }) => ` ${what} ${before} → ${after}`);
      return [lead(leads.called(node), node, leads), quiet(changes.join(","))];
    };
    parts.push(section(say(`${kind[0]?.toUpperCase()}${kind.slice(1)} ({})`, nodes.length), list(nodes, MOST_ROWS, row)));
  }
  if (edges.length) parts.push(section(say("Edges ({})", edges.length), list(edges, MOST_ROWS, (text) => [text])));
  if (!parts.length) parts.push(html("p", {}, say("No difference.")));
  return parts;
}

function transferRow(transfer: Transfer, leads: Leads): Value[] {
  const { node, kind } = transfer;
  return [node === null ? html("span", {}, kind) : lead(kind, node, leads), quiet(` ${transferText(transfer)}`)];
}
