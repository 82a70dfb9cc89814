// The camera: panning and zooming by mouse, touch and keys.

import { select } from "d3-selection";
import { zoom, zoomIdentity, zoomTransform, type ZoomBehavior, type ZoomTransform } from "d3-zoom";

export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** The whole picture. */
export interface World {
  readonly width: number;
  readonly height: number;
}

const MARGIN = 14;
const SEEN = 14; // least CSS pixels between the edge of the window and a card that must be visible
const SMALLEST = 0.005;
const LARGE = 1800; // width of a large screen in CSS pixels
const LEGIBLE = 0.7; // least legible scale: text of 11 to 13 pixels is then 8 to 9 pixels high
const WHOLE = 0.6; // a picture that fits at this scale is shown whole
const ABOVE = 60; // CSS pixels above the first box if it is not at the top of the picture

export class Camera {
  private readonly behavior: ZoomBehavior<SVGSVGElement, unknown>;
  /** Cached size of the stage in CSS pixels, since reading it while drawing would force a layout. */
  private size = { width: 800, height: 600 };
  /** True once the stage has had a size. */
  measured = false;
  private started: { world: World; first: Box | null; transform: ZoomTransform } | null = null;

  constructor(
    private readonly svg: SVGSVGElement,
    world: SVGGElement,
    moved: () => void,
  ) {
    this.behavior = zoom<SVGSVGElement, unknown>()
      .scaleExtent([SMALLEST, 4])
      .extent(() => [[0, 0], [this.size.width, this.size.height]])
      .on("zoom", ({ transform }: { transform: ZoomTransform }) => {
        world.setAttribute("transform", transform.toString());
        svg.classList.toggle("small", transform.k < 0.5);
        svg.classList.toggle("tiny", transform.k < 0.22);
        moved();
      });
    select(svg).call(this.behavior).on("dblclick.zoom", null);
  }

  /** Update the size of the stage. The point at the center stays there; an initial position is computed again. */
  measure(): void {
    const { clientWidth: width, clientHeight: height } = this.svg;
    const before = this.size;
    if (!width || !height || (this.measured && width === before.width && height === before.height)) return;
    const [first, started] = [!this.measured, this.started];
    this.size = { width, height };
    this.measured = true;
    if (first) return;
    if (started && this.transform === started.transform) return this.start(started.world, started.first);
    const { x, y, k } = this.transform;
    this.place(zoomIdentity.translate(x + (width - before.width) / 2, y + (height - before.height) / 2).scale(k));
  }

  get transform(): ZoomTransform {
    return zoomTransform(this.svg);
  }

  /** The visible part of the world. */
  get window(): Box {
    const { x, y, k } = this.transform;
    return { x: -x / k, y: -y / k, width: this.size.width / k, height: this.size.height / k };
  }

  /** Show the whole world. */
  fit(world: World): void {
    this.look({ x: 0, y: 0, ...world }, 1.25 * this.natural);
  }

  /** True if the text of a world is legible when the whole world is visible. */
  holds(world: World): boolean {
    return Math.min(...this.scales(world)) >= WHOLE;
  }

  /** Show a small world as a whole, and of a large world a legible part around the first box. */
  start(world: World, first: Box | null): void {
    if (this.holds(world)) this.fit(world);
    else {
      const scale = Math.max(LEGIBLE, Math.min(this.natural, ...this.scales(world)));
      this.place(zoomIdentity.translate(this.left(world, first, scale), this.top(world, first, scale)).scale(scale));
    }
    this.started = { world, first, transform: this.transform };
  }

  /** The scale of a picture that fits the window. A large screen is viewed from further away, so its scale is larger. */
  private get natural(): number {
    return Math.max(1, Math.min(2, this.size.width / LARGE));
  }

  /** Left offset, for which the world, or its first box, is in the center. */
  private left({ width }: World, first: Box | null, scale: number): number {
    const [room, wide] = [this.size.width, scale * width];
    if (wide + 2 * MARGIN <= room) return (room - wide) / 2;
    const middle = first ? first.x + first.width / 2 : width / 2;
    return Math.max(room - MARGIN - wide, Math.min(MARGIN, room / 2 - scale * middle));
  }

  /** Top offset, for which the world is at the top, or shifted so that its first box is visible. */
  private top({ height }: World, first: Box | null, scale: number): number {
    if (!first || MARGIN + scale * (first.y + first.height) + MARGIN <= this.size.height) return MARGIN;
    return Math.max(this.size.height - MARGIN - scale * height, ABOVE - scale * first.y);
  }

  /** Center a box. Keep the scale if the box fits; else choose a scale of at most `most`. */
  look(box: Box, most: number): void {
    const scale = Math.max(SMALLEST, Math.min(most, ...this.scales(box)));
    const { width, height } = this.size;
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    this.place(zoomIdentity.translate(width / 2, height / 2).scale(scale).translate(-x, -y));
  }

  /** Move the camera as little as possible to show a whole box; zoom out if the box does not fit. */
  show(box: Box): void {
    const { x, y, k } = this.transform;
    const scale = Math.max(SMALLEST, Math.min(k, ...this.scales(box)));
    const place = (offset: number, from: number, length: number, size: number): number => {
      // When the scale changes, the point at the center stays there.
      const start = size / 2 + ((offset - size / 2) * scale) / k;
      const [low, high] = [SEEN - scale * from, size - SEEN - scale * (from + length)];
      return Math.max(Math.min(low, high), Math.min(Math.max(low, high), start));
    };
    const [left, top] = [place(x, box.x, box.width, this.size.width), place(y, box.y, box.height, this.size.height)];
    if (left !== x || top !== y || scale !== k) this.place(zoomIdentity.translate(left, top).scale(scale));
  }

  /** Restore an earlier position of the camera. */
  to(transform: ZoomTransform): void {
    this.place(transform);
  }

  /** Move the camera so that the point `to` of the world gets the position on the screen that `from` had. */
  hold(from: { x: number; y: number }, to: { x: number; y: number }): void {
    const { x, y, k } = this.transform;
    this.place(zoomIdentity.translate(x + k * (from.x - to.x), y + k * (from.y - to.y)).scale(k));
  }

  by(factor: number): void {
    select(this.svg).call(this.behavior.scaleBy, factor);
  }

  pan(x: number, y: number): void {
    select(this.svg).call(this.behavior.translateBy, x / this.transform.k, y / this.transform.k);
  }

  centre(x: number, y: number): void {
    select(this.svg).call(this.behavior.translateTo, x, y);
  }

  private scales(box: { width: number; height: number }): [number, number] {
    const { width, height } = this.size;
    const inside = (length: number): number => Math.max(length / 2, length - 2 * MARGIN);
    return [inside(width) / Math.max(1, box.width), inside(height) / Math.max(1, box.height)];
  }

  private place(transform: ZoomTransform): void {
    select(this.svg).call(this.behavior.transform, transform);
  }
}
