// The part of the page's address that names a node or group: "#node=12", "#group=layers/0/attn".

import type { Tree } from "../graph/tree";
import type { Addresses } from "./visits";

export function addresses(tree: Tree): Addresses {
  const path = (group: number): string => [...tree.around(group).reverse(), group].map((one) => encodeURIComponent(tree.name(one))).join("/");
  const alike = (written: string): number[] => {
    const found = [];
    for (let group = tree.count; group < tree.count + tree.groups; group++)
      if (written.endsWith(encodeURIComponent(tree.name(group))) && tree.nodes(group).length && path(group) === written) found.push(group);
    return found;
  };
  return {
    write(item) {
      if (!tree.isGroup(item)) return `#node=${item}`;
      const written = path(item);
      const at = alike(written).indexOf(item);
      return `#group=${written}${at > 0 ? `;${at + 1}` : ""}`;
    },
    read(address) {
      const [, kind, named = "", number] = /^#(node|group)=([^;]*)(?:;(\d+))?$/.exec(address) ?? [];
      if (kind === "group") return alike(named)[Number(number ?? 1) - 1] ?? null;
      const node = kind === "node" && /^\d+$/.test(named) ? Number(named) : Number.NaN;
      return node < tree.count ? node : null;
    },
  };
}
