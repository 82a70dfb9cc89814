// Where the reader looks: pan and zoom by mouse, touch and keys.

import { select } from "d3-selection";
import { zoom, zoomIdentity, zoomTransform, type ZoomBehavior, type ZoomTransform } from "d3-zoom";

export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

const MARGIN = 28;
const SMALLEST = 0.005;
const READABLE = 0.62; // text of 13 pixels is 8 pixels high

export class Camera {
  private readonly behavior: ZoomBehavior<SVGSVGElement, unknown>;
  /** Of the stage, in CSS pixels. To ask the browser for it while things are drawn would cost a layout. */
  private size = { width: 800, height: 600 };

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

  measure(): void {
    const { clientWidth, clientHeight } = this.svg;
    if (clientWidth && clientHeight) this.size = { width: clientWidth, height: clientHeight };
  }

  get transform(): ZoomTransform {
    return zoomTransform(this.svg);
  }

  /** What of the world is seen. */
  get window(): Box {
    const { x, y, k } = this.transform;
    return { x: -x / k, y: -y / k, width: this.size.width / k, height: this.size.height / k };
  }

  /** All of the world. */
  fit(world: { width: number; height: number }): void {
    this.look({ x: 0, y: 0, ...world }, 1.25);
  }

  /** All of a small world; of a large one its beginning, so that it can be read. */
  start(world: { width: number; height: number }): void {
    const k = Math.min(...this.scales(world));
    if (k >= READABLE) return this.fit(world);
    const scale = Math.max(READABLE, Math.min(1, this.scales(world)[0]));
    this.place(zoomIdentity.translate(this.size.width / 2 - (scale * world.width) / 2, MARGIN).scale(scale));
  }

  /** Bring a box into the middle, not larger than `most`; keep the scale where it fits. */
  look(box: Box, most: number): void {
    const scale = Math.max(SMALLEST, Math.min(most, ...this.scales(box)));
    const { width, height } = this.size;
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    this.place(zoomIdentity.translate(width / 2, height / 2).scale(scale).translate(-x, -y));
  }

  /** Move so that a point of the world lies where `from` lay on the screen. */
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
    return [(width - 2 * MARGIN) / Math.max(1, box.width), (height - 2 * MARGIN) / Math.max(1, box.height)];
  }

  private place(transform: ZoomTransform): void {
    select(this.svg).call(this.behavior.transform, transform);
  }
}
