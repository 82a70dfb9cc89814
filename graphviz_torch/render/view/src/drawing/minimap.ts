// The minimap: the whole picture in a corner, with a frame around the visible part.

import type { Camera } from "./camera";
import { html } from "../dom";
import type { Scene } from "./scene";

const SIDE = 150;
const DOT = 5; // radius of a dot in device pixels, two of which are a CSS pixel

export class Minimap {
  private readonly canvas = html("canvas");
  private readonly window = html("i");
  readonly element = html("div", { class: "minimap", role: "img", "aria-label": "The whole picture: drag to move", title: "The whole picture: drag to move" }, this.canvas, this.window);
  private scene: Scene | null = null;

  constructor(
    private readonly camera: Camera,
    private readonly color: (name: string) => string,
    private readonly fill: (item: number) => string,
    private readonly marked: () => Iterable<number>,
  ) {
    const go = (event: PointerEvent): void => {
      if (!this.scene || !event.buttons) return;
      const { left, top } = this.canvas.getBoundingClientRect();
      const scale = this.scale / 2;
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
    const { canvas, scale } = this;
    canvas.width = Math.max(24, Math.ceil(scene.width * scale));
    canvas.height = Math.max(24, Math.ceil(scene.height * scale));
    canvas.style.width = `${canvas.width / 2}px`;
    canvas.style.height = `${canvas.height / 2}px`;
    const context = canvas.getContext("2d") as CanvasRenderingContext2D;
    context.strokeStyle = this.color("cluster_line");
    for (const { x, y, width, height } of scene.frames) context.strokeRect(x * scale, y * scale, width * scale, height * scale);
    const line = this.color("operation_line");
    for (const { card, x, y } of scene.cards) {
      context.fillStyle = line;
      context.fillRect(x * scale, y * scale, Math.max(2, card.width * scale), Math.max(2, card.height * scale));
      context.fillStyle = this.fill(card.item);
      if (card.height * scale > 4) context.fillRect(x * scale + 1, y * scale + 1, card.width * scale - 2, card.height * scale - 2);
    }
    const marked = new Set(this.marked());
    for (const { card, x, y } of scene.cards) if (marked.has(card.item)) this.dot(context, (x + card.width / 2) * scale, (y + card.height / 2) * scale);
    this.element.dataset.marked = String(marked.size);
    this.move();
  }

  private dot(context: CanvasRenderingContext2D, x: number, y: number): void {
    context.beginPath();
    context.arc(x, y, DOT, 0, 2 * Math.PI);
    context.fillStyle = this.color("changed");
    context.fill();
    context.strokeStyle = this.color("background");
    context.stroke();
  }

  /** Draw the frame around the visible part. */
  move(): void {
    if (!this.scene) return;
    const { x, y, width, height } = this.camera.window;
    const all = x <= 0 && y <= 0 && x + width >= this.scene.width && y + height >= this.scene.height;
    this.element.classList.toggle("whole", all);
    const scale = this.scale / 2;
    for (const [side, value] of Object.entries({ left: x, top: y, width, height })) this.window.style.setProperty(side, `${value * scale}px`);
  }
}
