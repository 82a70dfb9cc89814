// The groups of the graph. An item is an element that a level can draw: node i is item i, group g is
// item count + g. A level is the top (TOP) or the inside of a group, named by the group's item.

import type { Model } from "./model";
import type { Finding } from "./payload";

export const TOP = -1;

export class Tree {
  readonly count: number;
  /** 1 for a node without a card: a parameter, written inside the operations that use it, or a reshape, drawn as an edge. */
  readonly folded: Uint8Array;
  /** The node whose output a reshape without a card passes on; the node itself if it has a card; -1 for a parameter. */
  readonly origin: Int32Array;
  readonly groups: number;
  private readonly of: Int32Array; // level of each node
  private readonly parent: Int32Array; // level of each group
  private readonly depth: Int32Array;
  private readonly first: Int32Array; // a group's nodes are inside[first], ..., inside[end - 1]
  private readonly end: Int32Array;
  private readonly inside: Uint32Array;
  private readonly place: Uint32Array; // node -> position in `inside`
  private readonly names: { at: ArrayLike<number>; table: string[] };
  private readonly classes: { at: ArrayLike<number>; table: string[] };
  private readonly kinds: ArrayLike<number>;
  private readonly likes: ArrayLike<number>;
  private readonly units: ArrayLike<number>;
  private readonly alike: Map<number, number>;
  private readonly children: Map<number, number[]>;
  private readonly hosts: ArrayLike<number>; // distance to the node whose card shows a node
  private readonly results: ArrayLike<number>; // distance to the reshape whose output a card shows
  private readonly lone = new Map<number, string>();
  private readonly calls = new Map<number, string>();
  private readonly beside: Record<string, number>; // positions of data and of calls, which are not autograd nodes

  /** Number of nodes that have a card if all groups are open. */
  get drawn(): number {
    return this.folded.reduce((sum, folded) => sum + 1 - folded, 0);
  }

  constructor(model: Model) {
    const { payload, count } = model;
    const groups = (this.groups = payload.header.groups);
    this.count = count;
    this.beside = payload.header.places;
    this.of = levels(payload.column("of", count), count);
    this.parent = levels(payload.column("groupParent", groups), count);
    this.names = { at: payload.column("groupName", groups), table: payload.header.groupName };
    this.classes = { at: payload.column("groupClass", groups), table: payload.header.groupClass };
    this.kinds = payload.column("groupKind", groups);
    this.likes = payload.column("groupLike", groups);
    this.units = payload.column("groupUnit", groups);
    this.alike = new Map();
    for (let g = 0; g < groups; g++) {
      const like = this.likes[g] as number;
      this.alike.set(like, (this.alike.get(like) ?? 0) + 1);
    }
    this.hosts = payload.column("host", count);
    this.results = payload.column("shown", count);
    this.folded = Uint8Array.from({ length: count }, (_, node) => Number(Boolean(this.hosts[node])));
    this.origin = Int32Array.from({ length: count }, (_, node) => node);
    for (let node = 0; node < count; node++)
      if (this.folded[node]) this.origin[node] = model.leaf[node] ? -1 : Math.max(-1, ...model.inputs(node).map((edge) => this.origin[edge.node] as number));

    this.dissolve();

    this.depth = new Int32Array(groups);
    const sizes = new Int32Array(groups);
    for (let node = 0; node < count; node++) {
      const level = this.of[node] as number;
      if (level !== TOP) sizes[level - count] = (sizes[level - count] as number) + 1;
    }
    const direct = sizes.slice();
    for (let g = groups - 1; g >= 0; g--) {
      const level = this.parent[g] as number;
      if (level !== TOP) sizes[level - count] = (sizes[level - count] as number) + (sizes[g] as number);
    }
    this.first = new Int32Array(groups);
    this.end = new Int32Array(groups);
    // Parents come before their children. A group adds its own nodes first, then the nodes of each child.
    const next = new Int32Array(groups + 1);
    for (let g = 0; g < groups; g++) {
      const level = this.parent[g] as number;
      const slot = level === TOP ? groups : level - count;
      this.depth[g] = level === TOP ? 1 : (this.depth[level - count] as number) + 1;
      this.first[g] = next[slot] as number;
      next[slot] = (next[slot] as number) + (sizes[g] as number);
      this.end[g] = next[slot] as number;
      next[g] = (this.first[g] as number) + (direct[g] as number);
    }
    this.inside = new Uint32Array(count);
    this.place = new Uint32Array(count);
    const cursor = Int32Array.from({ length: groups + 1 }, (_, g) => (g === groups ? (next[groups] as number) : (this.first[g] as number)));
    this.children = new Map([[TOP, []]]);
    for (let node = 0; node < count; node++) {
      const level = this.of[node] as number;
      const slot = level === TOP ? groups : level - count;
      const at = cursor[slot] as number;
      cursor[slot] = at + 1;
      this.inside[at] = node;
      this.place[node] = at;
      if (!this.folded[node]) this.add(level, node);
    }
    const filled = new Uint8Array(groups); // 1 for a group with a card inside
    for (let g = groups - 1; g >= 0; g--) {
      if (this.children.has(count + g)) filled[g] = 1;
      const level = this.parent[g] as number;
      if (filled[g] && level !== TOP) filled[level - count] = 1;
    }
    for (let g = 0; g < groups; g++) if (filled[g]) this.add(this.parent[g] as number, count + g);
  }

  /** Remove groups that contain a single node; the node gets the group's name. */
  private dissolve(): void {
    const { count } = this;
    const inner = new Int32Array(this.groups);
    const only = new Int32Array(this.groups);
    const members: number[][] = Array.from({ length: this.groups }, () => []);
    for (let node = 0; node < count; node++) {
      const level = this.of[node] as number;
      if (level === TOP) continue;
      const g = level - count;
      members[g]?.push(node);
      if (this.folded[node]) continue;
      inner[g] = (inner[g] as number) + 1;
      only[g] = node;
    }
    for (let g = this.groups - 1; g >= 0; g--) {
      const level = this.parent[g] as number;
      const outer = level - count;
      if (inner[g] === 1 && (only[g] as number) < count) {
        const node = only[g] as number;
        if (this.isModule(count + g) && !this.lone.has(node)) this.lone.set(node, this.name(count + g));
        if (this.isCall(count + g)) this.calls.set(node, this.name(count + g));
        for (const member of members[g] as number[]) this.of[member] = level;
        if (level !== TOP) {
          members[outer]?.push(...(members[g] as number[]));
          only[outer] = node;
        }
      } else if (level !== TOP) only[outer] = count + g;
      if (level !== TOP) inner[outer] = (inner[outer] as number) + 1;
    }
  }

  /** The name of the module that contains only this node; "" for other nodes. */
  loneModule(node: number): string {
    return this.lone.get(node) ?? "";
  }

  /** The name of the call whose only node this is; "" for other nodes. */
  loneCall(node: number): string {
    return this.calls.get(node) ?? "";
  }

  /** The node whose card shows a node without one of its own; itself for other nodes. */
  host(node: number): number {
    return node + (this.hosts[node] as number);
  }

  /** The node whose output the card of a node shows: the last reshape of its module, or itself. */
  result(node: number): number {
    return node + (this.results[node] as number);
  }

  /** The parameters that are written inside a node, also those that a reshape passes on. */
  written(model: Model, node: number): number[] {
    return model.inputs(node).flatMap(({ node: source }) => (this.origin[source] !== -1 ? [] : model.leaf[source] ? [source] : this.written(model, source)));
  }

  private add(level: number, item: number): void {
    const list = this.children.get(level);
    if (list) list.push(item);
    else this.children.set(level, [item]);
  }

  isGroup(item: number): boolean {
    return item >= this.count;
  }

  /** The items directly in a level, in topological order. */
  items(level: number): number[] {
    const items = this.children.get(level) ?? [];
    const key = (item: number) => (this.isGroup(item) ? (this.nodes(item).at(0) ?? 0) : (this.beside[item] ?? item));
    return items.map((item) => [key(item), item] as const).sort((a, b) => a[0] - b[0]).map(([, item]) => item);
  }

  /** All nodes in an item or level, inner groups included. */
  nodes(item: number): Uint32Array {
    if (item === TOP) return this.inside;
    if (!this.isGroup(item)) return Uint32Array.of(item);
    const g = item - this.count;
    return this.inside.subarray(this.first[g], this.end[g]);
  }

  contains(level: number, node: number): boolean {
    if (level === TOP) return true;
    const g = level - this.count;
    const place = this.place[node] as number;
    return place >= (this.first[g] as number) && place < (this.end[g] as number);
  }

  /** The level that an item is drawn in. */
  levelOf(item: number): number {
    return (this.isGroup(item) ? this.parent[item - this.count] : this.of[item]) as number;
  }

  /** The levels that contain an item, the innermost first, without the top. */
  around(item: number): number[] {
    const found: number[] = [];
    for (let level = this.levelOf(item); level !== TOP; level = this.levelOf(level)) found.push(level);
    return found;
  }

  depthOf(level: number): number {
    return level === TOP ? 0 : (this.depth[level - this.count] as number);
  }

  name(item: number): string {
    return this.names.table[this.names.at[item - this.count] as number] as string;
  }

  /** The class of the module that a group is a call of; "" if not recorded. */
  classOf(group: number): string {
    return this.classes.table[this.classes.at[group - this.count] as number] as string;
  }

  /** The names from the top down to a group: "layers › 3 › attn". Stacks are left out, because they are not modules. */
  path(item: number): string {
    return [...this.around(item).reverse().filter((group) => !this.isStack(group)), item].map((group) => this.name(group)).join(" › ");
  }

  isModule(item: number): boolean {
    return this.kinds[item - this.count] === 0;
  }

  /** True for a segment of a joined graph. */
  isPart(item: number): boolean {
    return this.kinds[item - this.count] === 2;
  }

  /** True for a row of one operation, or two in turn, which its name lists, and for a call of a function. */
  isChain(item: number): boolean {
    return this.kinds[item - this.count] === 3 || this.isCall(item);
  }

  isCall(item: number): boolean {
    return this.kinds[item - this.count] === 5;
  }

  /** True for a stack: the identical groups after the one that is shown. */
  isStack(item: number): boolean {
    return this.kinds[item - this.count] === 4;
  }

  /** True for a group that a still picture draws as one operation, such as a linear layer or a loss. */
  isUnit(item: number): boolean {
    return this.units[item - this.count] === 1;
  }

  /** Number of groups with the same structure, itself included. */
  alikes(item: number): number {
    return this.alike.get(this.likes[item - this.count] as number) ?? 1;
  }

  /** The groups with the same structure. */
  like(item: number): number {
    return this.likes[item - this.count] as number;
  }
}

/** Records of the module that a group is a call of: names and texts. */
export function recordedOf(model: Model, tree: Tree, group: number): readonly [string, string][] {
  const node = calledFor(model, tree, group);
  return node === undefined || !tree.isModule(group) ? [] : model.recorded(node, namesOf(tree, group));
}

/** The path of the module that a group is a call of; "" for any other group. */
export function pathOf(model: Model, tree: Tree, group: number): string {
  const node = calledFor(model, tree, group);
  if (node === undefined || !tree.isModule(group)) return "";
  return model.text("module", node).split(".").slice(0, namesOf(tree, group)).join(".");
}

/** A node that the module of a group computed; an input of the module may belong to no module. */
function calledFor(model: Model, tree: Tree, group: number): number | undefined {
  const nodes = tree.nodes(group);
  return nodes.find((node) => model.text("module", node) !== "") ?? nodes[0];
}

/** Number of names in the path of a group's module. A list of modules has no group, but its name is part of its members' names. */
function namesOf(tree: Tree, group: number): number {
  const modules = [group, ...tree.around(group).filter((one) => tree.isModule(one))];
  return modules.reduce((count, one) => count + tree.name(one).split(".").length, 0);
}

/** Findings at the nodes that an item shows: the nodes of a group, or a node and the parameters written inside. */
export function findingsAt(model: Model, tree: Tree, item: number): Finding[] {
  if (!model.findingsOf.size) return [];
  const nodes = [...tree.nodes(item)];
  if (!tree.isGroup(item)) nodes.push(...tree.written(model, item));
  return [...new Set(nodes.flatMap((node) => model.findingsOf.get(node) ?? []))];
}

function levels(column: ArrayLike<number>, count: number): Int32Array {
  const found = new Int32Array(column.length);
  for (let row = 0; row < column.length; row++) found[row] = column[row] === 0 ? TOP : count + (column[row] as number) - 1;
  return found;
}
