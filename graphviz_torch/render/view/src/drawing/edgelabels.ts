// Find positions of edge labels at which they do not overlap other elements.

import type { Box } from "./camera";
import type { Path, Scene } from "./scene";

export interface Label {
  readonly path: Path;
  readonly text: string;
  readonly width: number;
  /** Draw the label even if it overlaps other elements. */
  readonly always: boolean;
}

export interface PlacedLabel extends Label {
  /** Left side and vertical middle. */
  readonly x: number;
  readonly y: number;
}

const HEIGHT = 16;
const BESIDE = 7; // pixels between an edge and its label
const SHORTEST = 26; // minimum length of an edge segment that can have a label, in pixels
const UPRIGHT = 8; // maximum horizontal distance between the ends of such a segment, in pixels
const TITLE_HEIGHT = 26;
const PIECE = 32; // length in pixels of the boxes that represent an edge as obstacles
const CELL = 128;

export function placeLabels(scene: Scene, labels: readonly Label[], titleWidth: (item: number) => number): PlacedLabel[] {
  if (!labels.length) return [];
  const taken = new Obstacles();
  for (const { card, x, y } of scene.cards) taken.add({ x, y, width: card.width, height: card.height }, null);
  for (const { item, x, y, width, height } of scene.frames) {
    taken.add({ x, y, width: titleWidth(item), height: TITLE_HEIGHT }, null);
    for (const side of [x, x + width]) taken.add({ x: side, y, width: 1, height }, null);
    for (const side of [y, y + height]) taken.add({ x, y: side, width, height: 1 }, null);
  }
  for (const path of scene.paths) if (!path.cut) for (const piece of pieces(path)) taken.add(piece, path);
  const placed: PlacedLabel[] = [];
  for (const label of labels) {
    const places = candidates(label);
    const free = places.find((place) => taken.free(place, label.path)) ?? (label.always ? places[0] : undefined);
    if (!free) continue;
    taken.add(free, null);
    placed.push({ ...label, x: free.x, y: free.y + HEIGHT / 2 });
  }
  return placed;
}

/** Candidates for the position: beside the middle of each upright segment, on both sides. A label that must be drawn can also be at the middle of the edge. */
function candidates({ path: { points }, width, always }: Label): Box[] {
  const found: Box[] = [];
  const beside = (at: number): void => {
    const [x0, y0, x1, y1] = points.slice(at, at + 4) as [number, number, number, number];
    const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2 - HEIGHT / 2];
    found.push({ x: x + BESIDE, y, width, height: HEIGHT }, { x: x - BESIDE - width, y, width, height: HEIGHT });
  };
  for (let at = 0; at + 3 < points.length; at += 2) {
    const [x0, y0, x1, y1] = points.slice(at, at + 4) as [number, number, number, number];
    if (y1 - y0 >= SHORTEST && Math.abs(x1 - x0) < UPRIGHT) beside(at);
  }
  if (!found.length && always) beside(2 * Math.floor(points.length / 4) - 2);
  return found;
}

function* pieces({ points }: Path): Generator<Box> {
  for (let at = 0; at + 3 < points.length; at += 2) {
    const [x0, y0, x1, y1] = points.slice(at, at + 4) as [number, number, number, number];
    const count = Math.ceil(Math.max(Math.abs(x1 - x0), Math.abs(y1 - y0)) / PIECE) || 1;
    const [dx, dy] = [(x1 - x0) / count, (y1 - y0) / count];
    for (let i = 0; i < count; i++) {
      const [x, y] = [x0 + i * dx, y0 + i * dy];
      yield { x: Math.min(x, x + dx) - 2, y: Math.min(y, y + dy), width: Math.abs(dx) + 4, height: Math.abs(dy) };
    }
  }
}

/** Grid cell -> boxes in it that are obstacles, each with the path of its edge. */
class Obstacles {
  private readonly cells = new Map<number, [Box, Path | null][]>();

  add(box: Box, path: Path | null): void {
    for (const key of cellsOf(box)) {
      const cell = this.cells.get(key);
      if (cell) cell.push([box, path]);
      else this.cells.set(key, [[box, path]]);
    }
  }

  /** True if a box overlaps no obstacle, apart from the boxes of the label's own edge. */
  free(box: Box, own: Path): boolean {
    for (const key of cellsOf(box)) for (const [other, path] of this.cells.get(key) ?? []) if (path !== own && overlap(box, other)) return false;
    return true;
  }
}

function* cellsOf({ x, y, width, height }: Box): Generator<number> {
  for (let row = Math.floor(y / CELL); row <= Math.floor((y + height) / CELL); row++)
    for (let column = Math.floor(x / CELL); column <= Math.floor((x + width) / CELL); column++) yield row * 65536 + column;
}

function overlap(a: Box, b: Box): boolean {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}
