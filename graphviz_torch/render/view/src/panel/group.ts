// The panel of a group: sums over the group's nodes.

import { html } from "../dom";
import type { Model } from "../graph/model";
import { spread } from "../graph/spread";
import { findingsAt, pathOf, recordedOf, type Tree } from "../graph/tree";
import { bytes, number, seconds } from "../graph/units";
import { say } from "../language";
import { drawCollectives, drawFinding, lead, type Leads, section, table, type Value } from "./facts";

const MOST_OPERATIONS = 12;

export function groupDetails(item: number, model: Model, tree: Tree, leads: Leads): HTMLElement[] {
  const nodes = tree.nodes(item);
  const operations = new Map<string, number>();
  const devices = new Set<string>();
  let [saved, time, weights] = [0, Number.NaN, 0];
  for (const node of nodes) {
    const operation = model.operation(node);
    if (model.leaf[node]) weights += model.firstOutput(node)?.nbytes ?? 0;
    else operations.set(operation, (operations.get(operation) ?? 0) + 1);
    const meta = model.firstOutput(node);
    if (meta) devices.add(meta.device);
    saved += model.savedBytes[node] as number;
    const spent = model.seconds(node);
    if (!Number.isNaN(spent)) time = (Number.isNaN(time) ? 0 : time) + spent;
  }
  const facts: [string, Value][] = [
    ["nodes", nodes.length.toLocaleString("en")],
    ["devices", [...devices].sort().join(", ")],
  ];
  facts.push(...recordedOf(model, tree, item));
  const marks = model.marked(nodes);
  if (marks) facts.unshift(["difference", marks]);
  if (weights) facts.push(["leaves", bytes(weights)]);
  if (saved) facts.push(["saved", bytes(saved)]);
  const { low, median, high } = spread(model, nodes);
  if (!Number.isNaN(low)) facts.push(["gradient norms", low === high ? number(low) : `${number(low)} to ${number(high)}, median ${number(median)}`]);
  if (!Number.isNaN(time)) facts.push(["backward time", seconds(time)]);
  if (tree.alikes(item) > 1) {
    const like = tree.like(item) + tree.count;
    facts.push(["alike", html("span", {}, `${tree.alikes(item)} groups, first `, lead(tree.path(like), like, leads))]);
  }
  const [path, inside] = [pathOf(model, tree, item), new Set(nodes)];
  const sent = model.collectives.filter(
    ({ node, module }) => (node !== null && inside.has(node)) || (path && `${module}.`.startsWith(`${path}.`)),
  );
  const often = [...operations].sort((a, b) => b[1] - a[1]).slice(0, MOST_OPERATIONS);
  return [
    ...findingsAt(model, tree, item).map((finding) => drawFinding(finding, leads)),
    table(facts),
    ...drawCollectives(sent, leads),
    section(say("Operations"), table(often.map(([name, times]) => [name, `× ${times.toLocaleString("en")}`]))),
  ];
}
