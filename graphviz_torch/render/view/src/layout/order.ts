// Order the boxes of each rank so that few edges cross: sort by barycenters, down and up, and keep the best order.
// This replaces dagre's step, which takes most of its time, by a step on arrays.

import type { Graph } from "@dagrejs/dagre";

const PATIENCE = 4; // the search ends after this many sweeps without fewer crossings

export function order(graph: Graph): void {
  const names = graph.nodes();
  const number = new Map(names.map((name, at) => [name, at]));
  const up: number[][] = names.map(() => []);
  const down: number[][] = names.map(() => []);
  for (const { v, w } of graph.edges()) {
    const [from, to] = [number.get(v) as number, number.get(w) as number];
    down[from]?.push(to);
    up[to]?.push(from);
  }
  let ranks = initial(names.map((name) => (graph.node(name) as { rank: number }).rank), down);
  let best = ranks;
  let least = crossings(ranks, down);
  for (let sweep = 0, since = 0; least > 0 && since < PATIENCE; sweep++, since++) {
    ranks = swept(ranks, sweep % 2 ? down : up, sweep % 2 === 1, sweep % 4 >= 2);
    const count = crossings(ranks, down);
    if (count < least) since = -1;
    if (count <= least) [best, least] = [ranks, count];
  }
  for (const rank of best) rank.forEach((node, at) => (((graph.node(names[node] as string) as { order: number }).order = at)));
}

/** The initial order of each rank: the order in which a search from the first ranks reaches the nodes. */
function initial(rankOf: readonly number[], down: readonly number[][]): number[][] {
  const ranks: number[][] = Array.from({ length: Math.max(-1, ...rankOf) + 1 }, () => []);
  const seen = new Uint8Array(rankOf.length);
  const starts = [...rankOf.keys()].sort((a, b) => (rankOf[a] as number) - (rankOf[b] as number));
  const stack = starts.reverse();
  for (let node = stack.pop(); node !== undefined; node = stack.pop()) {
    if (seen[node]) continue;
    seen[node] = 1;
    ranks[rankOf[node] as number]?.push(node);
    stack.push(...(down[node] as number[]).toReversed());
  }
  return ranks;
}

/** Return the ranks, each sorted by the positions of its nodes' neighbors in the previous rank. */
function swept(ranks: readonly number[][], neighbours: readonly number[][], upwards: boolean, rightwards: boolean): number[][] {
  const found = ranks.map((rank) => rank.slice());
  const position = positions(found);
  for (const rank of upwards ? found.toReversed() : found) {
    const weight = new Map<number, number>();
    for (const node of rank) {
      const near = neighbours[node] as number[];
      if (near.length) weight.set(node, near.reduce((sum, other) => sum + (position[other] as number), 0) / near.length);
    }
    // A node without neighbors in that rank keeps its position. Ties are broken to the left and to the right in turn.
    const free = rank.filter((node) => weight.has(node));
    if (rightwards) free.reverse();
    free.sort((a, b) => (weight.get(a) as number) - (weight.get(b) as number));
    let next = 0;
    rank.forEach((node, at) => {
      if (weight.has(node)) rank[at] = free[next++] as number;
    });
    rank.forEach((node, at) => (position[node] = at));
  }
  return found;
}

function positions(ranks: readonly number[][]): Float64Array {
  const position = new Float64Array(ranks.reduce((sum, rank) => sum + rank.length, 0));
  for (const rank of ranks) rank.forEach((node, at) => (position[node] = at));
  return position;
}

/** Number of crossing edge pairs: inversions among the lower ends, counted with a Fenwick tree. */
function crossings(ranks: readonly number[][], down: readonly number[][]): number {
  const position = positions(ranks);
  let count = 0;
  ranks.forEach((rank, at) => {
    const width = ranks[at + 1]?.length ?? 0;
    const sums = new Uint32Array(width + 1);
    let edges = 0;
    for (const node of rank) {
      const ends = (down[node] as number[]).map((other) => position[other] as number);
      for (const end of ends) {
        let before = 0;
        for (let i = end + 1; i > 0; i -= i & -i) before += sums[i] as number;
        count += edges - before;
      }
      for (const end of ends) for (let i = end + 1; i <= width; i += i & -i) sums[i] = (sums[i] as number) + 1;
      edges += ends.length;
    }
  });
  return count;
}
