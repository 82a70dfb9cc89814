// Search for nodes by name, operation, module, shape, dtype, device, line or finding.

import { shaped } from "./units";
import type { Model, TextColumn } from "./model";
import type { Tree } from "./tree";

const FIELDS: Record<string, string> = {
  name: "label",
  label: "label",
  op: "operation",
  operation: "operation",
  node: "name",
  module: "module",
  shape: "shape",
  dtype: "dtype",
  device: "device",
  line: "where",
  finding: "finding",
  class: "moduleClass",
  attribute: "attribute",
};
const TEXTS: readonly TextColumn[] = ["label", "operation", "name", "module", "moduleClass", "scope", "where"];

export interface Found {
  /** Groups whose name contains all words. */
  readonly groups: number[];
  readonly nodes: number[];
}

/**
 * Items that contain every word. A word after the name of a field is searched in that field only:
 * "op:addmm", "shape:8,128", "device:cuda", "finding:nan".
 */
export function search(model: Model, tree: Tree, query: string): Found {
  const words = query.toLowerCase().replaceAll(/\s*,\s*/g, ",").split(/\s+/).filter(Boolean);
  if (!words.length) return { groups: [], nodes: [] };
  const tests = words.map((word) => test(model, word));
  const nodes: number[] = [];
  for (let node = 0; node < model.count; node++) if (tests.every((holds) => holds(node))) nodes.push(node);
  const groups: number[] = [];
  for (let g = 0; g < tree.groups; g++) {
    const name = `${tree.name(tree.count + g)} ${tree.classOf(tree.count + g)}`.toLowerCase();
    if (!tree.nodes(tree.count + g).length) continue; // the group was removed, because it contains a single node
    if (words.every((word) => name.includes(word.replace(/^module:/, "")))) groups.push(tree.count + g);
  }
  return { groups, nodes };
}

function test(model: Model, word: string): (node: number) => boolean {
  const colon = word.indexOf(":");
  const field = FIELDS[word.slice(0, Math.max(0, colon))];
  const text = field ? word.slice(colon + 1) : word;
  const anywhere = field === undefined;
  const tests: ((node: number) => boolean)[] = [];
  for (const column of TEXTS)
    if (anywhere || column === field || (column === "scope" && field === "module")) tests.push(inTable(model, column, text));
  if (anywhere || field === "shape" || field === "dtype" || field === "device") tests.push(inShapes(model, field, text));
  if (anywhere || field === "attribute") tests.push((node) => model.attributes(node).some((one) => one.toLowerCase().includes(text)));
  if (anywhere || field === "finding") tests.push(inFindings(model, text));
  return (node) => tests.some((holds) => holds(node));
}

function inTable(model: Model, column: TextColumn, text: string): (node: number) => boolean {
  const { at, table } = model.column(column);
  const matches = Uint8Array.from(table, (entry) => Number(entry.toLowerCase().includes(text)));
  return (node) => matches[at[node] as number] === 1;
}

function inShapes(model: Model, field: string | undefined, text: string): (node: number) => boolean {
  const wanted = text.replaceAll("x", ",");
  const metas = model.metas.map((meta) => {
    const shape = `${shaped(meta).replaceAll(" ", "")} `;
    const parts = field === "device" ? [meta.device] : field === "dtype" ? [meta.dtype, shape] : [shape];
    if (!field) parts.push(meta.dtype, meta.device);
    return parts.some((part) => part.includes(text) || (field === "shape" && part.includes(wanted)));
  });
  const matches = model.shapes.map((outputs) => outputs.some((at) => metas[at]));
  return (node) => matches[model.shapeOf[node] as number] === true;
}

function inFindings(model: Model, text: string): (node: number) => boolean {
  const matches = new Set<number>();
  for (const [node, findings] of model.findingsOf)
    if (findings.some(({ rule, severity, message }) => `${rule} ${severity} ${message}`.toLowerCase().includes(text))) matches.add(node);
  return (node) => matches.has(node);
}
