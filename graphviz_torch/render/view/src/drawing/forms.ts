// The shapes of roles, so that no meaning depends on color alone.

import type { Role } from "./cards";
import { svg } from "../dom";

/** The outlines of a card for a role; the first outline is filled. */
export function outlines(role: Role, width: number, height: number, stacked = false): SVGElement[] {
  const rect = (inset: number, radius: number, kind = "form") =>
    svg("rect", { class: kind, x: inset, y: inset, width: width - 2 * inset, height: height - 2 * inset, rx: radius });
  switch (role) {
    case "input":
      return [rect(0, height / 2)];
    case "parameter":
    case "buffer": {
      const [bow, low] = [6, height - 6];
      const lid = `M0,${bow}A${width / 2},${bow} 0 0 1 ${width},${bow}`;
      return [
        svg("path", { class: "form", d: `${lid}V${low}A${width / 2},${bow} 0 0 1 0,${low}Z` }),
        svg("path", { class: "rim", d: `M0,${bow}A${width / 2},${bow} 0 0 0 ${width},${bow}` }),
      ];
    }
    case "transfer": {
      const cut = 12;
      const d = `M${cut},0H${width - cut}L${width},${height / 2}L${width - cut},${height}H${cut}L0,${height / 2}Z`;
      return [svg("path", { class: "form", d })];
    }
    case "collective": {
      const lean = 14;
      return [svg("path", { class: "form", d: `M${lean},0H${width}L${width - lean},${height}H0Z` })];
    }
    case "output":
      return [rect(0, 8), rect(3, 5, "rim")];
    case "group": {
      const back = `M6,0V-5H${width + 5}V${height - 6}H${width}`;
      return stacked ? [rect(0, 4), svg("path", { class: "rim", d: back })] : [rect(0, 4)];
    }
    case "data":
      return [rect(0, 3)];
    case "operation":
    case "untracked":
    case "failed":
      return [rect(0, 6)];
  }
}

/** The path of a bow: one Bézier curve with these control points. */
export function bow([x0, y0, ...rest]: readonly number[]): string {
  return `M${r(x0 as number)},${r(y0 as number)}C${rest.map(r).join(" ")}`;
}

/** The path of a smooth curve through points (x and y in turn): vertical at the ends, a B-spline in between. */
export function curve(points: readonly number[]): string {
  const at = (i: number) => [points[2 * i] as number, points[2 * i + 1] as number] as const;
  const n = points.length / 2;
  const [x0, y0] = at(0);
  if (n <= 3) {
    const [x1, y1] = at(n - 1);
    if (Math.abs(x0 - x1) < 1) return `M${r(x0)},${r(y0)}L${r(x1)},${r(y1)}`;
    const bend = (y1 - y0) / 2;
    return `M${r(x0)},${r(y0)}C${r(x0)},${r(y0 + bend)} ${r(x1)},${r(y1 - bend)} ${r(x1)},${r(y1)}`;
  }
  let d = `M${r(x0)},${r(y0)}`;
  const third = (a: number, b: number, part: number) => a + (b - a) * part;
  // Uniform cubic B-spline as Bézier pieces, with threefold knots at the ends.
  for (let i = 1; i < n; i++) {
    const [ax, ay] = at(i - 1);
    const [bx, by] = at(i);
    const [cx, cy] = at(Math.min(i + 1, n - 1));
    const [c1x, c1y] = i === 1 ? [ax, third(ay, by, 0.5)] : [third(ax, bx, 1 / 3), third(ay, by, 1 / 3)];
    const last = i === n - 1;
    const [c2x, c2y] = last ? [bx, third(ay, by, 0.5)] : [third(ax, bx, 2 / 3), third(ay, by, 2 / 3)];
    const [ex, ey] = last ? [bx, by] : [(c2x + third(bx, cx, 1 / 3)) / 2, (c2y + third(by, cy, 1 / 3)) / 2];
    d += `C${r(c1x)},${r(c1y)} ${r(c2x)},${r(c2y)} ${r(ex)},${r(ey)}`;
  }
  return d;
}

function r(value: number): number {
  return Math.round(value * 10) / 10;
}
