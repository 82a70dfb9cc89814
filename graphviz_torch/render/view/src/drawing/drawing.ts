// Draw the scene as SVG. Unchanged cards are reused; frames and edges are drawn again.

import type { Marks } from "./drawcard";
import { drawCard, sign } from "./drawcard";
import { svg } from "../dom";
import { bow, curve } from "./forms";
import type { Box } from "./camera";
import { type Card, TITLE_LEFT } from "./cards";
import type { Paint } from "./colors";
import { type Label, type PlacedLabel, placeLabels } from "./edgelabels";
import { ends, type Lit } from "./lighting";
import type { Frame, Path, PlacedCard, Scene, Stub } from "./scene";
import { TO_LEAVES, TO_OUTPUTS } from "../graph/reach";
import { say } from "../language";

/** Texts of an edge: the tooltip, and the label beside the edge. */
export interface EdgeWords {
  readonly title: string;
  readonly label: string;
  readonly width: number;
  /** Draw the label even if it overlaps. */
  readonly always: boolean;
  /** CSS classes. */
  readonly kind: string;
}

export interface Words {
  card(item: number): Marks;
  frame(item: number): { name: string; size: string; width: number };
  path(path: Path): EdgeWords;
  stub(stub: Stub): string;
}

/** A card of the scene, whose element is created when the card comes near the window. */
interface Place {
  readonly placed: PlacedCard;
  element: SVGGElement | null;
}

interface Wire {
  readonly path: Path;
  readonly element: SVGPathElement;
}

/** Cards are drawn beyond each side of the window, up to this fraction of its size. */
const AROUND = 0.4;
const STUB = 18;

interface Look {
  paint: (item: number) => Paint;
  selected: ReadonlySet<number>;
  matching: ReadonlySet<number>;
  lit: Lit | null;
  done: ((item: number) => number) | null;
  current: number | null;
}

export class Drawing {
  readonly svg: SVGSVGElement;
  readonly world: SVGGElement;
  private readonly frames = svg("g", { class: "frames" });
  private readonly paths = svg("g", { class: "paths" });
  private readonly handles = svg("g", { class: "handles" });
  private readonly labels = svg("g", { class: "labels" });
  private readonly cards = svg("g", { class: "cards" });
  private places = new Map<number, Place>();
  private readonly wires: Wire[] = [];
  private readonly look: Look = { paint: () => ({ fill: "none", gauge: null, said: "" }), selected: new Set(), matching: new Set(), lit: null, done: null, current: null };

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
      { class: "drawing", tabindex: 0, role: "application", "aria-label": say("Autograd graph") },
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
    const labels: Label[] = [];
    for (const path of scene.paths) {
      const { title, label, width, always, kind: said } = this.words.path(path);
      const kind = `wire ${said}${path.far ? " distant" : ""}${path.cut ? " cut" : ""}${path.link && path.link.edges > 1 ? " several" : ""}${open.has(path.to) ? " goes-on" : ""}`;
      const element = svg("path", { class: kind, d: (path.far ? bow : curve)(path.points) }, svg("title", {}, title));
      this.wires.push({ path, element });
      if (label && (always || !path.far)) labels.push({ path, text: label, width, always });
    }
    for (const label of placeLabels(scene, labels, (item) => this.words.frame(item).width)) this.labels.append(wireLabel(label));
    this.paths.replaceChildren(...this.wires.map(({ element }) => element));
    this.labels.append(...scene.stubs.map((stub) => drawStub(stub, this.words.stub(stub))));

    const before = this.places;
    this.places = new Map();
    for (const placed of scene.cards) {
      const { item } = placed.card;
      const element = before.get(item)?.element ?? null;
      before.delete(item);
      this.places.set(item, { placed, element });
      if (element) move(element, placed);
    }
    for (const { element } of before.values()) element?.remove();
  }

  /** Draw the cards in and near a window. All other cards are removed from the document, for speed. */
  see({ x, y, width, height }: Box): void {
    const [left, right] = [x - AROUND * width, x + (1 + AROUND) * width];
    const [top, bottom] = [y - AROUND * height, y + (1 + AROUND) * height];
    const come: SVGGElement[] = [];
    for (const place of this.places.values()) {
      const { card, x, y } = place.placed;
      if (x > right || y > bottom || x + card.width < left || y + card.height < top) {
        place.element?.remove();
        place.element = null;
      } else if (!place.element) {
        const element = (place.element = drawCard(card, this.words.card(card.item)));
        move(element, place.placed);
        this.dress(card, element);
        come.push(element);
      }
    }
    this.cards.append(...come);
  }

  paint(paint: (item: number) => Paint): void {
    this.look.paint = paint;
    this.dressAll();
  }

  select(item: number | null, node: number | null): void {
    this.look.selected = new Set([item, node].filter((one) => one !== null));
    for (const element of [...this.frames.children, ...this.handles.children] as SVGElement[])
      element.classList.toggle("selected", this.look.selected.has(Number(element.dataset.item)));
    this.dressAll();
  }

  /** Mark the cards that contain search results. */
  match(items: ReadonlySet<number>): void {
    this.look.matching = items;
    this.dressAll();
  }

  /** Highlight neighbors and paths of the selection; with `quietly`, faintly highlight the path of the hovered card. */
  light(lit: Lit | null, quietly = false): void {
    this.look.lit = lit;
    this.svg.classList.toggle("lit", lit !== null && !quietly);
    this.svg.classList.toggle("hovering", lit !== null && quietly);
    const of = (item: number) => lit?.ways.get(item) ?? 0;
    for (const { path, element } of this.wires) {
      const [from, to] = [of(path.from), of(path.to)];
      const chosen = TO_LEAVES | TO_OUTPUTS;
      const along = (from & to) > 0 || (from === chosen && to > 0);
      const near = lit?.pieces.has(ends(path)) ?? false;
      const on = near || (along && (!path.cut || from === chosen || to === chosen));
      element.classList.toggle("on", on);
      element.classList.toggle("near", near);
      if (on && lit) this.paths.append(element);
    }
    this.dressAll();
  }

  /** Dim the items that backward has not reached. `done` returns the fraction of an item that ran; null dims nothing. */
  play(done: ((item: number) => number) | null, current: number | null): void {
    this.look.done = done;
    this.look.current = current;
    this.svg.classList.toggle("playing", done !== null);
    // A gradient travels from an edge's target to its source.
    for (const { path, element } of this.wires) element.classList.toggle("waiting", done !== null && path.link !== null && done(path.to) === 0);
    this.dressAll();
  }

  private dressAll(): void {
    for (const { placed, element } of this.places.values()) if (element) this.dress(placed.card, element);
  }

  /** Style a card by the state of its item: color, selection, highlighted path, progress of backward. */
  private dress(card: Card, element: SVGGElement): void {
    const { paint, selected, matching, lit, done, current } = this.look;
    const { item } = card;
    const { fill, gauge, said } = paint(item);
    element.querySelector(".form")?.setAttribute("fill", fill);
    element.querySelector(".gauge")?.remove();
    if (gauge) element.prepend(svg("rect", { class: "gauge", x: -10, width: 7, height: card.height, rx: 3, fill: gauge }));
    element.dataset.said = said;
    const share = done ? done(item) : 1;
    const looks = { spoilt: said.endsWith("NaN or Inf"), selected: selected.has(item), matching: matching.has(item), on: (lit?.ways.get(item) ?? 0) > 0, near: lit?.near.has(item) ?? false, waiting: share === 0, current: item === current };
    for (const [name, has] of Object.entries(looks)) element.classList.toggle(name, has);
    for (const inside of element.querySelectorAll<SVGElement>(".inside")) inside.classList.toggle("selected", selected.has(Number(inside.dataset.item)));
    element.querySelector(".progress")?.remove();
    if (share > 0 && share < 1) element.append(svg("rect", { class: "progress", y: card.height - 4, width: card.width * share, height: 4 }));
  }

  private handle({ item, x, y, width, depth }: Frame): SVGGElement {
    const title = this.words.frame(item);
    return svg(
      "g",
      { class: `frame ${depth % 2 ? "odd" : "even"}`, "data-item": item, transform: `translate(${Math.round(x)},${Math.round(y)})` },
      svg("rect", { class: "hit handle", width, height: 26 }),
      svg("rect", { class: "plate handle", x: 4, y: 4, width: title.width - 6, height: 20, rx: 10 }),
      svg("text", { class: "handle", x: TITLE_LEFT, y: 18 }, svg("tspan", { class: "strong" }, title.name), svg("tspan", { class: "quiet", dx: 8 }, title.size)),
      sign("−", 14, 14, "close"),
    );
  }
}

function ground({ item, x, y, width, height, depth }: Frame): SVGRectElement {
  const place = { x: Math.round(x), y: Math.round(y), width: Math.round(width), height: Math.round(height), rx: 8 };
  return svg("rect", { class: `ground ${depth % 2 ? "odd" : "even"}`, "data-item": item, ...place });
}

function move(element: SVGGElement, { x, y }: PlacedCard): void {
  element.setAttribute("transform", `translate(${Math.round(x)},${Math.round(y)})`);
}

function wireLabel({ text, width, always, x, y }: PlacedLabel): SVGGElement {
  const plate = svg("rect", { class: "plate", x: -4, y: -8, width: width + 8, height: 16, rx: 4 });
  // Only a label that may overlap other elements needs a background.
  const parts = always ? [plate] : [];
  return svg("g", { class: always ? "wire-label" : "wire-label free", transform: `translate(${Math.round(x)},${Math.round(y)})` }, ...parts, svg("text", { y: 4 }, text));
}

/** A short arrow beside a card, with the name of the card at the other end, which a click selects. */
function drawStub({ item, side, x, y }: Stub, label: string): SVGGElement {
  const d = side === "from" ? `M0,0H${STUB}` : `M${STUB},0H0`;
  return svg(
    "g",
    { class: "stub", "data-item": item, transform: `translate(${Math.round(x)},${Math.round(y) + (side === "from" ? 9 : -9)})` },
    svg("rect", { class: "hit", y: -8, width: 60, height: 16 }),
    svg("path", { class: "wire", d }),
    svg("text", { x: STUB + 5, y: 4 }, label),
  );
}
