// The view of one graph in one element: handles user input and updates the picture.

import type { ZoomTransform } from "d3-zoom";
import { addresses } from "./controls/addresses";
import { type Actions, Bar } from "./controls/bar";
import { type Crumb, Crumbs } from "./controls/crumbs";
import { type Keyed, keyList, press } from "./controls/keys";
import { LegendBox } from "./controls/legend";
import { Playback } from "./controls/playback";
import { Player } from "./controls/player";
import { SearchBox } from "./controls/searchbox";
import { type Visit, Visits } from "./controls/visits";
import { html } from "./dom";
import { type Box, Camera } from "./drawing/camera";
import { Cards } from "./drawing/cards";
import { type ColorBy, Colors } from "./drawing/colors";
import { Drawing } from "./drawing/drawing";
import { Lighting } from "./drawing/lighting";
import { Minimap } from "./drawing/minimap";
import { save, toPng, toSvg } from "./drawing/picture";
import { Places } from "./drawing/places";
import { type Scene, Scenes } from "./drawing/scene";
import { type Theme, Themes } from "./drawing/theme";
import { GraphWords } from "./drawing/words";
import type { Model } from "./graph/model";
import { Slicer } from "./graph/slice";
import { Tree } from "./graph/tree";
import { shorten } from "./graph/units";
import { titled } from "./language";
import type { Arranger } from "./layout/arranger";
import { Panel } from "./panel/panel";

export interface Options {
  onSelect?: (node: number | null) => void;
  selected?: number | null;
  theme?: Theme;
  colorBy?: ColorBy;
  /** The view fills its page: it handles all keys, and the page address unless it is in a frame. */
  page?: boolean;
  /** Translations of the texts on buttons and labels; English without them. */
  words?: Readonly<Record<string, string>>;
  /** Layouts may run in a worker; false for a page whose content security policy forbids workers. */
  workers?: boolean;
}

const PHONE = 480; // width of a phone in CSS pixels
const NARROW = 700; // CSS pixels; a narrower view shows no panel at the side
const MOST_CALLED = 40;
const THEMES: Theme[] = ["auto", "light", "dark"];

export class View implements Keyed, Actions {
  private readonly tree: Tree;
  private readonly scenes: Scenes;
  private readonly themes: Themes;
  private readonly colors: Colors;
  private readonly drawing: Drawing;
  private readonly camera: Camera;
  private readonly places: Places;
  private readonly lighting: Lighting;
  private readonly minimap: Minimap;
  private readonly panel: Panel;
  private readonly legend: LegendBox;
  private readonly crumbs: Crumbs;
  private readonly playback: Playback;
  private readonly player: Player;
  private readonly search: SearchBox;
  private readonly bar: Bar;
  private readonly visits: Visits<ZoomTransform>;
  private readonly keys = keyList();
  private readonly live = html("div", { class: "live", "aria-live": "polite" });
  private readonly sizes = new ResizeObserver(() => this.resize());
  private scene: Scene = { cards: [], frames: [], paths: [], stubs: [], width: 0, height: 0 };
  /** The selected item: a group, or a node, which a closed group may hide. */
  private selected: number | null = null;
  private hovered: number | null = null;
  /** The first node of a finding (for a cut, the detached node), or else the first node that differs. */
  private readonly wrong: number | null;

  constructor(
    private readonly element: HTMLElement,
    private readonly model: Model,
    private readonly arranger: Arranger,
    private readonly options: Options,
  ) {
    this.tree = new Tree(model);
    const cards = new Cards(model, this.tree);
    const told = model.findings.find(({ severity, nodes }) => severity !== "info" && nodes.length);
    const cut = model.cuts.find(({ before, after }) => before !== null && told?.nodes.includes(before) && after.some((node) => told.nodes.includes(node)));
    const differing = model.difference?.marks.map(([node]) => node);
    this.wrong = cut?.before ?? told?.nodes[0] ?? differing?.[0] ?? null;
    const first = differing ?? (this.wrong === null ? [] : [this.wrong]);
    // As in a still picture, differences and failures must not be hidden inside the box of a layer.
    const open = model.difference !== null || told?.severity === "error";
    this.scenes = new Scenes(this.tree, cards, new Slicer(model, this.tree), arranger, model.payload.header.open, first, open);
    this.themes = new Themes(element, model.payload.header, options.theme ?? "auto", () => this.recolor());
    this.colors = new Colors(model, this.tree, cards, this.themes);
    this.playback = new Playback(model, this.tree);
    this.drawing = new Drawing(new GraphWords(model, this.tree, cards));
    this.places = new Places(model, this.tree, this.scenes.open);
    this.lighting = new Lighting(model, this.tree, this.places);
    this.camera = new Camera(this.drawing.svg, this.drawing.world, () => this.moved());
    const fill = (item: number): string => this.colors.paint(item).gauge ?? this.colors.paint(item).fill;
    this.minimap = new Minimap(this.camera, (name) => this.themes.color(name), fill, () => this.matching());
    const go = (item: number): void => void this.select(item, true);
    const address = options.page && window === window.parent ? addresses(this.tree) : null;
    this.visits = new Visits(this.visit(), address, (visit) => void this.revisit(visit), go);
    const leads = { go, called: (node: number) => this.called(node), address: (item: number) => address?.write(item) ?? "" };
    this.panel = new Panel(model, this.tree, leads, () => void this.select(null));
    this.legend = new LegendBox(this.colors, (by) => this.colorBy(by));
    this.crumbs = new Crumbs((item) => (item === null ? this.fit() : go(item)));
    this.player = new Player(this.playback, (node) => model.caption(node), () => this.replay());
    this.search = new SearchBox(model, this.tree, go, () => this.match());
    this.bar = new Bar(this.search.element, this);
    const canvas = html("div", { class: "canvas" }, this.crumbs.element, this.drawing.svg);
    const side = html("div", { class: "side" }, this.panel.element, this.minimap.element);
    const stage = html("div", { class: "stage" }, canvas, side);
    element.append(this.bar.element, stage, this.legend.element, this.player.element, this.live, this.keys);
    this.colors.choose(options.colorBy ?? this.colors.usual);
    this.listen();
  }

  /** Draw the first picture. */
  async start(): Promise<void> {
    this.panel.show(null);
    this.resize();
    await this.redraw();
    while (this.camera.measured && !this.model.difference && !this.model.payload.header.open && !this.camera.holds(this.scene) && this.scenes.closeInnermost(this.wrong)) await this.redraw();
    this.begin();
    this.sizes.observe(this.element);
    this.sizes.observe(this.drawing.svg);
    const selected = this.visits.addressed ?? this.options.selected ?? null;
    if (selected !== null) await this.select(selected, true);
  }

  stop(): void {
    this.sizes.disconnect();
    this.player.stop();
    this.arranger.stop();
    this.themes.stop();
    this.visits.stop();
    document.removeEventListener("keydown", this.pressed);
  }

  setTheme(theme: Theme): void {
    this.themes.set(theme);
  }

  nextTheme(): void {
    this.setTheme(THEMES[(THEMES.indexOf(this.themes.theme) + 1) % THEMES.length] as Theme);
  }

  colorBy(by: ColorBy): void {
    this.colors.choose(by);
    this.recolor();
  }

  /** Select a node or group; with `bring`, open the groups that contain it, and move the camera to it. */
  async select(item: number | null, bring = false): Promise<void> {
    const left = this.visit();
    const changed = item !== this.selected;
    await this.show(item, bring);
    if (!changed) return;
    this.visits.add(left, this.visit());
    if (item === null || (item < this.model.payload.header.tracked && item !== this.model.failed)) this.options.onSelect?.(item);
  }

  /** Close or open a group; with `inside`, also open all groups inside. */
  async toggle(group: number, inside = false): Promise<void> {
    const [left, before] = [this.visit(), this.places.where(group)];
    if (inside) this.scenes.openInside(group);
    else if (this.scenes.open.has(group)) this.scenes.close(group);
    else this.scenes.reveal(group);
    await this.redraw();
    const after = this.places.where(group);
    if (before && after) this.camera.hold({ x: before.x + before.width / 2, y: before.y }, { x: after.x + after.width / 2, y: after.y });
    this.visits.add(left, this.visit());
  }

  openSelected(inside: boolean): void {
    if (this.selected !== null && this.tree.isGroup(this.selected)) void this.toggle(this.selected, inside);
  }

  openAll(open: boolean): void {
    const left = this.visit();
    if (open) this.scenes.openAll();
    else this.scenes.closeAll();
    void this.redraw().then(() => {
      this.begin();
      this.visits.add(left, this.visit());
    });
  }

  back(): void {
    this.visits.back();
  }

  forward(): void {
    this.visits.forward();
  }

  /** Select the neighbour of the selected card in a direction on the screen. */
  step(dx: number, dy: number): void {
    const next = nextCard(this.scene, this.selected === null ? null : this.places.where(this.places.shown(this.selected)), dx, dy);
    if (next !== null) void this.select(next);
  }

  fit(): void {
    this.camera.fit(this.scene);
  }

  zoom(factor: number): void {
    this.camera.by(factor);
  }

  find(): void {
    this.search.focus();
  }

  play(): void {
    this.player.toggle();
  }

  playStep(by: number): void {
    this.player.move(by);
  }

  help(): void {
    this.keys.showModal();
  }

  /** Stop the playback of backward, or else clear the selection. */
  escape(): void {
    if (this.playback.step !== null) this.player.leave();
    else void this.select(null);
  }

  svg(): string {
    const { svg } = this.drawing;
    const zoomed = svg.getAttribute("class") ?? "";
    svg.classList.remove("small", "tiny");
    this.drawing.see({ x: 0, y: 0, ...this.scene });
    const text = toSvg(svg, this.scene, this.themes.color("background"), titled(this.model.title));
    svg.setAttribute("class", zoomed);
    this.drawing.see(this.camera.window);
    return text;
  }

  saveSvg(): void {
    save(new Blob([this.svg()], { type: "image/svg+xml" }), `${this.fileName}.svg`);
  }

  savePng(): void {
    void toPng(this.svg()).then((picture) => save(picture, `${this.fileName}.png`));
  }

  private get fileName(): string {
    return (this.model.payload.header.title || "graph").replaceAll(/[^\w.-]+/g, "-").slice(0, 60);
  }

  private listen(): void {
    const { svg } = this.drawing;
    svg.addEventListener("click", (event) => {
      const target = event.target as Element;
      const item = itemAt(target);
      if (item !== null && target.closest("[data-act]")) void this.toggle(item, event.shiftKey);
      else void this.select(target.closest(".ground") ? null : item);
    });
    svg.addEventListener("dblclick", (event) => {
      const target = event.target as Element;
      const item = itemAt(target);
      if (item !== null && this.tree.isGroup(item) && !target.closest("[data-act]") && !target.closest(".ground")) void this.toggle(item, event.shiftKey);
    });
    svg.addEventListener("pointerover", ({ target, pointerType }) => {
      if (pointerType === "mouse") this.hover((target as Element).closest(".card") ? itemAt(target as Element) : null);
    });
    svg.addEventListener("pointerleave", () => this.hover(null));
    // A view that fills its page handles keys without a click into the view.
    if (this.options.page) document.addEventListener("keydown", this.pressed);
    else this.element.addEventListener("keydown", this.pressed);
  }

  private readonly pressed = (event: KeyboardEvent): void => press(event, this);

  /** Handle a new size. In a hidden tab, the camera is positioned when the view first gets a size. */
  private resize(): void {
    this.element.classList.toggle("narrow", this.element.clientWidth < NARROW);
    this.element.classList.toggle("phone", this.element.clientWidth < PHONE);
    const before = this.camera.measured;
    this.camera.measure();
    if (!before && this.camera.measured && this.scene.cards.length) this.begin();
    this.moved();
  }

  /** Handle a movement of the camera. */
  private moved(): void {
    if (!this.crumbs) return; // the constructor of the camera calls this before the view is complete
    this.drawing.see(this.camera.window);
    this.minimap.move();
    this.showCrumbs();
  }

  private async show(item: number | null, bring: boolean): Promise<void> {
    this.selected = item;
    this.panel.show(item);
    this.element.classList.toggle("selecting", item !== null);
    if (item !== null && bring) {
      const carrier = this.places.carrier(item);
      const level = this.tree.levelOf(carrier);
      if (level >= 0 && !this.tree.around(carrier).every((group) => this.scenes.open.has(group))) {
        this.scenes.reveal(level);
        await this.redraw();
      }
    }
    this.mark();
    this.showCrumbs();
    if (this.element.classList.contains("narrow")) this.camera.measure(); // the panel changes the size of the stage
    const box = item === null ? null : this.places.where(this.places.shown(item));
    if (box && bring) this.camera.look(box, Math.max(0.8, Math.min(1.2, this.camera.transform.k)));
    else if (box) this.camera.show(box);
    this.live.textContent = item === null ? "" : this.tree.isGroup(item) ? this.tree.name(item) : this.model.caption(item);
  }

  private visit(): Visit<ZoomTransform> {
    return { selected: this.selected, open: [...this.scenes.open], look: this.camera.transform };
  }

  private async revisit({ selected, open, look }: Visit<ZoomTransform>): Promise<void> {
    this.scenes.reopen(open);
    await this.redraw();
    const changed = selected !== this.selected;
    await this.show(selected, false);
    this.camera.to(look);
    if (changed && (selected === null || selected < this.model.payload.header.tracked)) this.options.onSelect?.(selected);
  }

  private async redraw(): Promise<void> {
    const scene = await this.scenes.scene();
    if (!scene) return;
    this.scene = scene;
    this.places.redrawn(scene);
    this.hovered = null;
    this.drawing.draw(scene);
    this.recolor();
    this.mark();
    this.drawing.match(this.matching());
    if (this.playback.step !== null) this.replay();
    this.drawing.see(this.camera.window);
    this.element.dataset.cards = String(scene.cards.length);
  }

  private recolor(): void {
    this.bar.showTheme(this.themes.theme);
    this.colors.measure(this.scene.cards.map(({ card }) => card.item));
    this.legend.draw();
    this.drawing.paint((item) => this.colors.paint(item));
    this.minimap.draw(this.scene);
  }

  private replay(): void {
    const { step, current } = this.playback;
    const shown = current === null ? null : this.places.shown(current);
    this.drawing.play(step === null ? null : (item) => this.playback.done(item), shown);
    const box = shown === null ? null : this.places.where(shown);
    if (box) this.camera.show(box);
  }

  /** Highlight the selection, and the paths from it to the leaves and to the outputs. */
  private mark(): void {
    const item = this.selected;
    this.drawing.select(item === null ? null : this.places.shown(item), item);
    this.drawing.light(item === null ? null : this.lighting.selected(item, this.frames()));
  }

  /** If nothing is selected, highlight the path from the hovered card to the outputs. */
  private hover(item: number | null): void {
    if (item === this.hovered) return;
    this.hovered = item;
    if (this.selected !== null) return;
    this.drawing.light(item === null ? null : this.lighting.hovered(item, this.frames()), true);
  }

  private begin(): void {
    const wrong = this.wrong === null ? null : this.places.where(this.places.shown(this.wrong));
    this.camera.start(this.scene, wrong ?? this.places.end);
  }

  /** The items that show the search results. */
  private matching(): Set<number> {
    return new Set(this.search.found.map((item) => this.places.shown(item)));
  }

  private match(): void {
    this.drawing.match(this.matching());
    this.minimap.draw(this.scene);
  }

  private frames(): number[] {
    return this.scene.frames.map(({ item }) => item);
  }

  private showCrumbs(): void {
    const { tree, model, selected } = this;
    const modules = (groups: number[]): number[] => groups.filter((group) => !tree.isStack(group) && !tree.isChain(group));
    const around = selected === null ? modules(this.seenInside()) : [...modules(tree.around(this.places.carrier(selected)).reverse()), selected];
    const ofNode = (node: number): string => [tree.loneModule(node), model.caption(node)].filter(Boolean).join(" · ");
    const name = (item: number): string => (tree.isGroup(item) ? tree.name(item) : shorten(ofNode(item), MOST_CALLED));
    const whole: Crumb = { item: null, name: shorten(titled(model.title), MOST_CALLED) };
    this.crumbs.show([whole, ...around.map((item) => ({ item, name: name(item) }))]);
  }

  /** The open groups around the centre of the window, outermost first. */
  private seenInside(): number[] {
    const { x, y, width, height } = this.camera.window;
    const [middle, centre] = [x + width / 2, y + height / 2];
    const inside = (box: Box): boolean => box.x <= middle && middle <= box.x + box.width && box.y <= centre && centre <= box.y + box.height;
    return this.scene.frames.filter(inside).map(({ item }) => item);
  }

  /** The text of a link to a node: name, operation and source line. */
  private called(node: number): string {
    const { model } = this;
    const name = model.text("label", node) ? `${model.caption(node)} · ${model.operation(node)}` : model.operation(node);
    const line = model.text("where", node);
    return `${shorten(model.leaf[node] ? model.caption(node) : name, MOST_CALLED)}${line ? ` · ${shorten(line, MOST_CALLED)}` : ""}`;
  }
}

function itemAt(target: Element): number | null {
  const found = target.closest<SVGElement>("[data-item]")?.dataset.item;
  return found === undefined ? null : Number(found);
}

/** The card nearest to a box in a direction; without a box, the first card. */
function nextCard(scene: Scene, here: Box | null, dx: number, dy: number): number | null {
  if (!here) return scene.cards[0]?.card.item ?? null;
  let [best, least] = [null as number | null, Number.POSITIVE_INFINITY];
  for (const { card, x, y } of scene.cards) {
    const [ax, ay] = [x + card.width / 2 - here.x - here.width / 2, y + card.height / 2 - here.y - here.height / 2];
    const along = ax * dx + ay * dy;
    const cost = along + 2 * (Math.abs(ax * dy) + Math.abs(ay * dx));
    if (along >= 8 && cost < least) [best, least] = [card.item, cost];
  }
  return best;
}
