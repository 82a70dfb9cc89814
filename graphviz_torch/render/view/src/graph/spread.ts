// The gradients of many nodes in three numbers: the smallest norm, the median, the largest.

import type { Model } from "./model";

export interface Spread {
  readonly low: number;
  readonly median: number;
  readonly high: number;
}

/** NaN in all three where no node has a gradient. */
export function spread(model: Model, nodes: Uint32Array): Spread {
  const norms = Float64Array.from(nodes, (node) => model.norm(node)).filter((norm) => !Number.isNaN(norm)).sort();
  const at = (place: number): number => norms[place] ?? Number.NaN;
  return { low: at(0), median: at((norms.length - 1) >> 1), high: at(norms.length - 1) };
}
