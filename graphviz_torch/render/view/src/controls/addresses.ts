// Convert items to and from the fragment of the page address: "#node=12", "#group=layers/0/attn".

import { TOP, type Tree } from "../graph/tree";
import type { Addresses } from "./visits";

export function addresses(tree: Tree): Addresses {
  const around = (group: number): number[] => [...tree.around(group).reverse().filter((one) => !tree.isStack(one)), group];
  const write = (group: number): string => around(group).map((one) => encodeURIComponent(tree.name(one))).join("/");
  return {
    write(item) {
      if (!tree.isGroup(item)) return `#node=${item}`;
      const at = alike(tree, around(item).map((group) => tree.name(group))).indexOf(item);
      return `#group=${write(item)}${at > 0 ? `;${at + 1}` : ""}`;
    },
    read(address) {
      const [, kind, named = "", number] = /^#(node|group)=([^;]*)(?:;(\d+))?$/.exec(address) ?? [];
      if (kind === "group") return alike(tree, named.split("/").map(decode))[Number(number ?? 1) - 1] ?? null;
      const node = kind === "node" && /^\d+$/.test(named) ? Number(named) : Number.NaN;
      return node < tree.count ? node : null;
    },
  };
}

/** The groups with this path from the top. There are several if two calls have the same name. */
function alike(tree: Tree, names: readonly string[]): number[] {
  return names.reduce((levels, name) => levels.flatMap((level) => groupsIn(tree, level).filter((item) => tree.name(item) === name)), [TOP]);
}

/** The groups of a level, those inside its stacks included. */
function groupsIn(tree: Tree, level: number): number[] {
  return tree.items(level).filter((item) => tree.isGroup(item)).flatMap((item) => (tree.isStack(item) ? [item, ...groupsIn(tree, item)] : [item]));
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return ""; // no group has this name
  }
}
