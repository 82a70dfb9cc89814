// The panel while nothing is selected: the graph in numbers, its findings, its transfers.

import { html } from "./dom";
import { bytes, count, seconds } from "./format";
import type { Model } from "./model";
import { drawFinding, type Leads, section, table, transferText } from "./panel";
import type { Transfer } from "./payload";

const MOST_TRANSFERS = 100;

export function overview(model: Model, leads: Leads): HTMLElement[] {
  const parts = [html("header", {}, html("div", {}, html("h2", {}, model.title || "Autograd graph"), html("p", { class: "quiet" }, numbers(model))))];
  if (model.failure) {
    const { error, message, where, node } = model.failure;
    const nodes = node === null ? [] : [node];
    parts.push(drawFinding({ rule: error, severity: "error", message, advice: "", cause: "", where, nodes, transfers: [] }, leads));
  }
  parts.push(table(facts(model)));
  if (model.findings.length) parts.push(section(`Findings (${model.findings.length})`, ...model.findings.map((finding) => drawFinding(finding, leads))));
  if (model.transfers.length) {
    const rows = model.transfers.slice(0, MOST_TRANSFERS).map((transfer) => transferRow(transfer, leads));
    if (model.transfers.length > MOST_TRANSFERS) rows.push(html("li", { class: "quiet" }, `and ${model.transfers.length - MOST_TRANSFERS} more`));
    parts.push(section(`Transfers (${model.transfers.length})`, html("ul", {}, ...rows)));
  }
  return parts;
}

function numbers(model: Model): string {
  let leaves = 0;
  for (let node = 0; node < model.count; node++) leaves += Number(model.leaf[node] !== 0);
  return `${count(model.count, "node")}, ${leaves.toLocaleString("en")} of them leaves`;
}

function facts(model: Model): [string, string][] {
  const devices = new Set(model.metas.map((meta) => meta.device));
  const rows: [string, string][] = [["devices", [...devices].sort().join(", ")]];
  const kept = model.savedBytes.reduce((sum, size) => sum + size, 0);
  if (kept) rows.push(["saved for backward", bytes(kept)]);
  if (model.recordedSeconds) {
    let sum = 0;
    for (let node = 0; node < model.count; node++) sum += model.seconds(node) || 0;
    rows.push(["backward time", `${seconds(sum)}, all nodes together`]);
  }
  if (model.transfers.length) {
    const moved = model.transfers.reduce((sum, { nbytes }) => sum + (nbytes ?? 0), 0);
    rows.push(["moved between devices", bytes(moved)]);
  }
  if (model.lossScale !== null) rows.push(["loss scale", `gradients are multiplied by ${model.lossScale}`]);
  return rows;
}

function transferRow(transfer: Transfer, leads: Leads): HTMLElement {
  const { node } = transfer;
  const kind = html(node === null ? "span" : "a", node === null ? {} : { href: "#", role: "button" }, transfer.kind);
  if (node !== null)
    kind.addEventListener("click", (event) => {
      event.preventDefault();
      leads.node(node);
    });
  return html("li", {}, kind, html("span", { class: "quiet" }, ` ${transferText(transfer)}`));
}
