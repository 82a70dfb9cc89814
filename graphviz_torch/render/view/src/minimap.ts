// The whole picture in a corner, and the part of it that is seen.

import type { Camera } from "./camera";
import { html } from "./dom";
import type { Scene } from "./scene";

const SIDE = 150;

export class Minimap {
  readonly element = html("canvas", { class: "minimap", width: 2 * SIDE, height: 2 * SIDE, title: "The whole picture: drag to move" });
  private scene: Scene | null = null;
  private ground: ImageData | null = null;

  constructor(
    private readonly camera: Camera,
    private readonly color: (name: string) => string,
    private readonly fill: (item: number) => string,
  ) {
    const go = (event: PointerEvent): void => {
      if (!this.scene || !event.buttons) return;
      const { left, top, width } = this.element.getBoundingClientRect();
      const scale = (this.scale * width) / this.element.width;
      camera.centre((event.clientX - left) / scale, (event.clientY - top) / scale);
    };
    this.element.addEventListener("pointerdown", (event) => {
      this.element.setPointerCapture(event.pointerId);
      go(event);
    });
    this.element.addEventListener("pointermove", go);
  }

  private get scale(): number {
    return (2 * SIDE) / Math.max(this.scene?.width ?? 1, this.scene?.height ?? 1, 1);
  }

  draw(scene: Scene): void {
    this.scene = scene;
    const { element, scale } = this;
    element.width = Math.max(24, Math.ceil(scene.width * scale));
    element.height = Math.max(24, Math.ceil(scene.height * scale));
    element.style.width = `${element.width / 2}px`;
    element.style.height = `${element.height / 2}px`;
    const context = this.context;
    context.strokeStyle = this.color("cluster_line");
    for (const { x, y, width, height } of scene.frames) context.strokeRect(x * scale, y * scale, width * scale, height * scale);
    const line = this.color("operation_line");
    for (const { card, x, y } of scene.cards) {
      context.fillStyle = line;
      context.fillRect(x * scale, y * scale, Math.max(2, card.width * scale), Math.max(2, card.height * scale));
      context.fillStyle = this.fill(card.item);
      if (card.height * scale > 4) context.fillRect(x * scale + 1, y * scale + 1, card.width * scale - 2, card.height * scale - 2);
    }
    this.ground = context.getImageData(0, 0, element.width, element.height);
    this.move();
  }

  /** Draw the frame of what is seen. */
  move(): void {
    if (!this.ground || !this.scene) return;
    const { context, scale } = this;
    context.putImageData(this.ground, 0, 0);
    const { x, y, width, height } = this.camera.window;
    const all = x <= 0 && y <= 0 && x + width >= this.scene.width && y + height >= this.scene.height;
    this.element.classList.toggle("whole", all);
    context.lineWidth = 3;
    context.strokeStyle = this.color("info");
    context.strokeRect(x * scale, y * scale, width * scale, height * scale);
  }

  private get context(): CanvasRenderingContext2D {
    return this.element.getContext("2d", { willReadFrequently: true }) as CanvasRenderingContext2D;
  }
}
