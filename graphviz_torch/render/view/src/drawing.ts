// The scene as SVG. Cards that stay are kept; frames and edges are drawn anew.

import type { Marks } from "./drawcard";
import { drawCard, sign } from "./drawcard";
import { svg } from "./dom";
import { bow, curve } from "./forms";
import type { Paint } from "./colors";
import type { Frame, Path, Scene } from "./scene";
import { TO_LEAVES, TO_OUTPUTS } from "./reach";

export interface Words {
  card(item: number): Marks;
  frame(item: number): { name: string; size: string };
  path(path: Path): { title: string; label: string };
}

/** How far each item lies on the way of the selection; null: nothing is selected. */
export type Lit = ReadonlyMap<number, number> | null;

export class Drawing {
  readonly svg: SVGSVGElement;
  readonly world: SVGGElement;
  private readonly frames = svg("g", { class: "frames" });
  private readonly paths = svg("g", { class: "paths" });
  private readonly handles = svg("g", { class: "handles" });
  private readonly labels = svg("g", { class: "labels" });
  private readonly cards = svg("g", { class: "cards" });
  private readonly drawn = new Map<number, SVGGElement>();
  private readonly wires: { path: Path; element: SVGPathElement }[] = [];

  constructor(private readonly words: Words) {
    const arrow = (name: string) =>
      svg(
        "marker",
        { id: name, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto" },
        svg("path", { class: name, d: "M0,0.5L8,4L0,7.5Z" }),
      );
    const hatch = svg(
      "pattern",
      { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { class: "hatch-ground", width: 7, height: 7 }),
      svg("rect", { class: "hatch-line", width: 2, height: 7 }),
    );
    this.world = svg("g", {}, this.frames, this.paths, this.handles, this.labels, this.cards);
    this.svg = svg(
      "svg",
      { class: "drawing", tabindex: 0, role: "application", "aria-label": "Autograd graph" },
      svg("defs", {}, arrow("arrow"), arrow("arrow-lit"), arrow("arrow-moved"), hatch),
      this.world,
    );
  }

  draw(scene: Scene): void {
    this.frames.replaceChildren(...scene.frames.map(ground));
    this.handles.replaceChildren(...scene.frames.map((frame) => this.handle(frame)));
    const open = new Set(scene.frames.map(({ item }) => item));
    this.wires.length = 0;
    this.labels.replaceChildren();
    for (const path of scene.paths) {
      const { title, label } = this.words.path(path);
      const moved = path.link !== null && path.link.way !== "";
      const kind = `wire${path.far ? " distant" : ""}${moved ? " moved" : ""}${path.link && path.link.edges > 1 ? " several" : ""}${open.has(path.to) ? " goes-on" : ""}`;
      const element = svg("path", { class: kind, d: (path.far ? bow : curve)(path.points) }, svg("title", {}, title));
      this.wires.push({ path, element });
      if (label) this.labels.append(wireLabel(path, label));
    }
    this.paths.replaceChildren(...this.wires.map(({ element }) => element));

    const stay = new Set(scene.cards.map(({ card }) => card.item));
    for (const [item, element] of this.drawn)
      if (!stay.has(item)) {
        element.remove();
        this.drawn.delete(item);
      }
    for (const { card, x, y } of scene.cards) {
      let element = this.drawn.get(card.item);
      if (!element) {
        element = drawCard(card, this.words.card(card.item));
        this.drawn.set(card.item, element);
        this.cards.append(element);
      }
      element.setAttribute("transform", `translate(${Math.round(x)},${Math.round(y)})`);
    }
  }

  paint(paint: (item: number) => Paint): void {
    for (const [item, element] of this.drawn) {
      const { fill, ink, said } = paint(item);
      const form = element.querySelector<SVGElement>(".form");
      form?.setAttribute("fill", fill);
      element.classList.toggle("spoilt", said.endsWith("NaN or Inf"));
      element.style.setProperty("--text", ink);
      element.dataset.said = said;
    }
  }

  select(item: number | null, node: number | null): void {
    for (const element of this.svg.querySelectorAll(".selected")) element.classList.remove("selected");
    for (const wanted of new Set([item, node])) {
      if (wanted === null) continue;
      for (const element of this.svg.querySelectorAll(`[data-item="${wanted}"]`)) element.classList.add("selected");
    }
  }

  light(lit: Lit): void {
    this.svg.classList.toggle("lit", lit !== null);
    const of = (item: number) => lit?.get(item) ?? 0;
    for (const [item, element] of this.drawn) element.classList.toggle("on", of(item) > 0);
    for (const { path, element } of this.wires) {
      const both = of(path.from) & of(path.to);
      const on = both > 0 || (of(path.from) === (TO_LEAVES | TO_OUTPUTS) && of(path.to) > 0);
      element.classList.toggle("on", on);
      if (on && lit) this.paths.append(element);
    }
  }

  /** Dim what backward has not reached; `done` is a share for each item, null: all of it. */
  play(done: ((item: number) => number) | null, current: number | null): void {
    this.svg.classList.toggle("playing", done !== null);
    // A gradient travels from an edge's target to its source.
    for (const { path, element } of this.wires) element.classList.toggle("waiting", done !== null && path.link !== null && done(path.to) === 0);
    for (const [item, element] of this.drawn) {
      const share = done ? done(item) : 1;
      element.classList.toggle("waiting", share === 0);
      element.classList.toggle("current", item === current);
      const bar = element.querySelector(".progress");
      if (done && share > 0 && share < 1) {
        const { width, height } = element.querySelector<SVGGraphicsElement>(".form")?.getBBox() ?? new DOMRect();
        if (bar) bar.setAttribute("width", String(width * share));
        else element.append(svg("rect", { class: "progress", y: height - 4, width: width * share, height: 4 }));
      } else bar?.remove();
    }
  }

  private handle({ item, x, y, width }: Frame): SVGGElement {
    const { name, size } = this.words.frame(item);
    return svg(
      "g",
      { class: "frame", "data-item": item, transform: `translate(${Math.round(x)},${Math.round(y)})` },
      svg("rect", { class: "hit handle", width, height: 26 }),
      svg("text", { class: "handle", x: 28, y: 18 }, svg("tspan", { class: "strong" }, name), svg("tspan", { class: "quiet", dx: 8 }, size)),
      sign("−", 14, 14, "close"),
    );
  }
}

function ground({ item, x, y, width, height, depth }: Frame): SVGRectElement {
  const place = { x: Math.round(x), y: Math.round(y), width: Math.round(width), height: Math.round(height), rx: 8 };
  return svg("rect", { class: `ground ${depth % 2 ? "odd" : "even"}`, "data-item": item, ...place });
}

function wireLabel({ points }: Path, label: string): SVGGElement {
  const middle = Math.floor(points.length / 4);
  const [x0, y0, x1, y1] = points.slice(2 * middle - 2, 2 * middle + 2) as [number, number, number, number];
  const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2];
  return svg("g", { class: "wire-label", transform: `translate(${Math.round(x) + 7},${Math.round(y)})` }, svg("text", { y: 4 }, label));
}
