// Paths of a gradient: the nodes between given nodes and the leaves, or the outputs.

import type { Model } from "./model";

export const TO_LEAVES = 1;
export const TO_OUTPUTS = 2;

/** Return, for each node, the requested paths that contain the node. The given nodes are on all paths. */
export function reach(model: Model, nodes: Iterable<number>, wanted = TO_LEAVES | TO_OUTPUTS): Uint8Array {
  const marks = new Uint8Array(model.count);
  const start = [...nodes];
  if (wanted & TO_LEAVES)
    spread(marks, start, TO_LEAVES, (node, visit) => {
      for (let edge = model.inputStart[node] as number; edge < (model.inputStart[node + 1] as number); edge++)
        visit(model.inputSource[edge] as number);
    });
  if (wanted & TO_OUTPUTS)
    spread(marks, start, TO_OUTPUTS, (node, visit) => {
      for (let at = model.userStart[node] as number; at < (model.userStart[node + 1] as number); at++)
        visit(model.edgeTarget[model.userEdge[at] as number] as number);
    });
  return marks;
}

function spread(
  marks: Uint8Array,
  start: readonly number[],
  mark: number,
  next: (node: number, visit: (other: number) => void) => void,
): void {
  const stack = [...start];
  const visit = (node: number): void => {
    if ((marks[node] as number) & mark) return;
    marks[node] = (marks[node] as number) | mark;
    stack.push(node);
  };
  for (const node of start) marks[node] = (marks[node] as number) | mark;
  for (let node = stack.pop(); node !== undefined; node = stack.pop()) next(node, visit);
}
