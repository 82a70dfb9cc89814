// Replaces d3-transition and d3-interpolate in the bundle. d3-zoom imports both for animations, which the
// view never uses. Without this file, the two packages are a sixth of the bundle.

import { selection } from "d3-selection";

(selection.prototype as unknown as { interrupt(): unknown }).interrupt = function () {
  return this;
};

export function interrupt(): void {}

export function interpolateZoom(): never {
  throw new Error("The view has no transitions.");
}
