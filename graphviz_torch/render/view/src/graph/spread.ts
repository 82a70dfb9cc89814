// Summarize the gradients of many nodes: smallest, median and largest norm.

import type { Model } from "./model";

export interface Spread {
  readonly low: number;
  readonly median: number;
  readonly high: number;
}

/** All three are NaN if no node has a gradient. */
export function spread(model: Model, nodes: Uint32Array): Spread {
  const norms = Float64Array.from(nodes, (node) => model.norm(node)).filter((norm) => !Number.isNaN(norm)).sort();
  const at = (place: number): number => norms[place] ?? Number.NaN;
  return { low: at(0), median: at((norms.length - 1) >> 1), high: at(norms.length - 1) };
}
