// Find edges that are too long to be routed between the boxes.

import type { Area } from "./ranks";

// dagre puts a box on every rank that an edge crosses, which takes time and widens the picture. Where
// more edges than this pass a rank, the longest are drawn as bows at the side instead.
const MOST_PASSING = 5;

/** Return, for each link, whether to draw it as a bow, so that few other links pass each rank. */
export function farLinks(boxes: readonly Area[], links: readonly [number, number][]): boolean[] {
  const rank = ranks(boxes, links);
  const of = (item: number) => rank.get(item) as number;
  const passing = new Int32Array(boxes.length + 1);
  const far = links.map(() => false);
  const span = ([from, to]: readonly [number, number]) => of(to) - of(from);
  const shortest = [...links.keys()].sort((a, b) => span(links[a] as [number, number]) - span(links[b] as [number, number]));
  for (const at of shortest) {
    const [from, to] = links[at] as [number, number];
    const crossed = passing.subarray(of(from) + 1, Math.max(of(from) + 1, of(to)));
    if (crossed.every((edges) => edges < MOST_PASSING)) crossed.forEach((edges, rank) => (crossed[rank] = edges + 1));
    else far[at] = true;
  }
  return far;
}

/** Box -> length of the longest path from a first box. A box without inputs is directly before its first user. */
function ranks(boxes: readonly Area[], links: readonly [number, number][]): Map<number, number> {
  const rank = new Map(boxes.map((box) => [box.item, 0]));
  const position = new Map(boxes.map((box, at) => [box.item, at]));
  const of = (item: number) => rank.get(item) as number;
  const forward = links.filter(([from, to]) => (position.get(from) as number) < (position.get(to) as number));
  forward.sort((a, b) => (position.get(a[0]) as number) - (position.get(b[0]) as number));
  for (const [from, to] of forward) rank.set(to, Math.max(of(to), of(from) + 1));
  const reading = new Set(forward.map(([, to]) => to));
  const first = new Map<number, number>();
  for (const [from, to] of forward) if (!reading.has(from)) first.set(from, Math.min(first.get(from) ?? of(to), of(to)));
  for (const [item, user] of first) rank.set(item, user - 1);
  return rank;
}
