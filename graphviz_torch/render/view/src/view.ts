// The view of one graph in one element: what the user does, and what is then drawn.

import type { Arranger } from "./arranger";
import { Camera } from "./camera";
import { Cards } from "./cards";
import { type ColorBy, Colors } from "./colors";
import { button, html } from "./dom";
import { Drawing } from "./drawing";
import { shorten } from "./format";
import { keys } from "./keys";
import { LegendBox } from "./legend";
import { Minimap } from "./minimap";
import type { Model } from "./model";
import { Panel } from "./panel";
import { save, toPng, toSvg } from "./picture";
import { Playback } from "./playback";
import { Player } from "./player";
import { reach } from "./reach";
import { type Scene, Scenes } from "./scene";
import { SearchBox } from "./searchbox";
import { Slicer } from "./slice";
import { type Theme, Themes } from "./theme";
import { Tree } from "./tree";
import { GraphWords } from "./words";

export interface Options {
  onSelect?: (node: number | null) => void;
  selected?: number | null;
  theme?: Theme;
  colorBy?: ColorBy;
}

const NARROW = 700; // CSS pixels: less has no room for a panel at the side
const THEME_SIGNS: Record<Theme, string> = { auto: "◐", light: "☀", dark: "☾" };

export class View {
  readonly tree: Tree;
  private readonly cards: Cards;
  private readonly scenes: Scenes;
  private readonly themes: Themes;
  private readonly colors: Colors;
  private readonly drawing: Drawing;
  private readonly camera: Camera;
  private readonly minimap: Minimap;
  private readonly panel: Panel;
  private readonly legend: LegendBox;
  private readonly playback: Playback;
  private readonly player: Player;
  private readonly search: SearchBox;
  private readonly live = html("div", { class: "live", "aria-live": "polite" });
  private readonly stage = html("div", { class: "stage" });
  private readonly themeButton: HTMLButtonElement;
  private readonly sizes = new ResizeObserver(() => this.resize());
  private width = 0;
  private scene: Scene = { cards: [], frames: [], paths: [], stubs: [], width: 0, height: 0 };
  /** What is selected: a group's item, or a node (which a closed group may hide). */
  selected: number | null = null;

  constructor(
    private readonly element: HTMLElement,
    private readonly model: Model,
    private readonly arranger: Arranger,
    private readonly options: Options,
  ) {
    this.tree = new Tree(model);
    this.cards = new Cards(model, this.tree);
    this.scenes = new Scenes(this.tree, this.cards, new Slicer(model, this.tree), arranger);
    this.themes = new Themes(element, model.payload.header, options.theme ?? "auto", () => this.recolor());
    this.colors = new Colors(model, this.tree, this.cards, this.themes);
    this.playback = new Playback(model, this.tree);
    const words = new GraphWords(model, this.tree, this.cards);
    this.drawing = new Drawing(words);
    this.minimap = new Minimap(
      (this.camera = new Camera(this.drawing.svg, this.drawing.world, () => this.moved())),
      (name) => this.themes.color(name),
      (item) => this.colors.paint(item).fill,
    );
    const go = (item: number): void => void this.select(item, true);
    this.panel = new Panel(model, this.tree, { node: go, group: go, called: (node) => shorten(model.caption(node), 24) }, () => void this.select(null));
    this.legend = new LegendBox(this.colors, (by) => this.colorBy(by));
    this.player = new Player(this.playback, (node) => model.caption(node), () => this.replay());
    this.search = new SearchBox(model, this.tree, go);
    this.themeButton = button("", "Theme: as the system has it, light, dark", () => this.nextTheme());
    this.stage.append(this.drawing.svg, this.minimap.element, this.panel.element);
    element.append(this.bar(), this.stage, this.legend.element, this.player.element, this.live);
    this.colors.choose(options.colorBy ?? "role");
    this.listen();
  }

  /** Draw for the first time. */
  async start(): Promise<void> {
    this.panel.show(null);
    this.resize();
    await this.redraw();
    this.camera.start(this.scene);
    this.sizes.observe(this.element);
    if (this.options.selected != null) await this.select(this.options.selected, true);
  }

  stop(): void {
    this.sizes.disconnect();
    this.player.stop();
    this.arranger.stop();
    this.themes.stop();
  }

  setTheme(theme: Theme): void {
    this.themes.set(theme);
  }

  colorBy(by: ColorBy): void {
    this.colors.choose(by);
    this.recolor();
  }

  /** Select a node or group; `bring` opens the groups around it and moves there. */
  async select(item: number | null, bring = false): Promise<void> {
    const changed = item !== this.selected;
    this.selected = item;
    this.panel.show(item);
    this.element.classList.toggle("selecting", item !== null);
    if (item !== null && bring) {
      const level = this.tree.levelOf(this.carrier(item));
      if (level >= 0 && !this.tree.around(this.carrier(item)).every((group) => this.scenes.open.has(group))) {
        this.scenes.reveal(level);
        await this.redraw();
      }
    }
    this.mark();
    if (item !== null && bring) this.bring(item);
    else if (item !== null && this.width < NARROW) {
      this.camera.measure(); // the panel takes its room
      this.keepInSight(this.shown(item));
    }
    this.live.textContent = item === null ? "" : this.tree.isGroup(item) ? this.tree.name(item) : this.model.caption(item);
    if (changed && (item === null || !this.tree.isGroup(item))) this.options.onSelect?.(item);
  }

  /** Close a group or open it; with `inside` open all groups in it too. */
  async toggle(group: number, inside = false): Promise<void> {
    const before = this.where(group);
    if (inside) this.scenes.openInside(group);
    else if (this.scenes.open.has(group)) this.scenes.close(group);
    else this.scenes.reveal(group);
    await this.redraw();
    const after = this.where(group);
    if (before && after) this.camera.hold({ x: before.x + before.width / 2, y: before.y }, { x: after.x + after.width / 2, y: after.y });
  }

  /** Select the neighbour of the selected card in a direction on the screen. */
  step(dx: number, dy: number): void {
    const here = this.selected === null ? null : this.where(this.shown(this.selected));
    if (!here) {
      const [first] = this.scene.cards;
      if (first) void this.select(first.card.item);
      return;
    }
    let [best, least] = [null as number | null, Number.POSITIVE_INFINITY];
    for (const { card, x, y } of this.scene.cards) {
      const [ax, ay] = [x + card.width / 2 - here.x - here.width / 2, y + card.height / 2 - here.y - here.height / 2];
      const along = ax * dx + ay * dy;
      const across = Math.abs(ax * dy) + Math.abs(ay * dx);
      if (along < 8) continue;
      const cost = along + 2 * across;
      if (cost < least) [best, least] = [card.item, cost];
    }
    if (best === null) return;
    void this.select(best).then(() => this.keepInSight(best));
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

  /** A view in a hidden tab has no size yet: it looks at the graph once it has one. */
  private resize(): void {
    const width = this.element.clientWidth;
    this.camera.measure();
    this.element.classList.toggle("narrow", width < NARROW);
    if (width && !this.width && this.scene.cards.length) this.camera.start(this.scene);
    this.width = width;
    this.moved();
  }

  /** Another part of the world is seen. */
  private moved(): void {
    if (!this.camera) return; // it moves as it is made
    this.drawing.see(this.camera.window);
    this.minimap.move();
  }

  /** Undo one thing: the run of backward, else the selection. */
  escape(): void {
    if (this.playback.step !== null) this.player.leave();
    else void this.select(null);
  }

  async openAll(open: boolean): Promise<void> {
    if (open) this.scenes.openAll();
    else this.scenes.closeAll();
    await this.redraw();
    this.camera.start(this.scene);
  }

  svg(): string {
    const { svg } = this.drawing;
    const zoomed = svg.getAttribute("class") ?? "";
    svg.classList.remove("small", "tiny");
    this.drawing.see({ x: 0, y: 0, ...this.scene });
    const text = toSvg(svg, this.scene, this.themes.color("background"), this.model.title || "Autograd graph");
    svg.setAttribute("class", zoomed);
    this.drawing.see(this.camera.window);
    return text;
  }

  private bar(): HTMLElement {
    const name = (this.model.title || "graph").replaceAll(/[^\w.-]+/g, "-").slice(0, 60);
    const savePng = async (): Promise<void> => save(await toPng(this.svg()), `${name}.png`);
    return html(
      "div",
      { class: "bar" },
      this.search.element,
      html("span", { class: "space" }),
      button("Open all", "Open all groups that the picture can hold", () => void this.openAll(true)),
      button("Close all", "Close all groups", () => void this.openAll(false)),
      button("−", "Smaller (−)", () => this.zoom(1 / 1.3)),
      button("+", "Larger (+)", () => this.zoom(1.3)),
      button("Fit", "See all (f)", () => this.fit()),
      button("SVG", "Save the picture as SVG", () => save(new Blob([this.svg()], { type: "image/svg+xml" }), `${name}.svg`)),
      button("PNG", "Save the picture as PNG", () => void savePng()),
      this.themeButton,
    );
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
    this.element.addEventListener("keydown", (event) => keys(event, this));
  }

  private async redraw(): Promise<void> {
    const scene = await this.scenes.scene();
    if (!scene) return;
    this.scene = scene;
    this.drawing.draw(scene);
    this.recolor();
    this.mark();
    if (this.playback.step !== null) this.replay();
    this.drawing.see(this.camera.window);
    this.element.dataset.cards = String(scene.cards.length);
  }

  private recolor(): void {
    this.themeButton.textContent = THEME_SIGNS[this.themes.theme];
    this.colors.measure(this.scene.cards.map(({ card }) => card.item));
    this.legend.draw();
    this.drawing.paint((item) => this.colors.paint(item));
    this.minimap.draw(this.scene);
  }

  private replay(): void {
    const { step, current } = this.playback;
    const shown = current === null ? null : this.shown(current);
    this.drawing.play(step === null ? null : (item) => this.playback.done(item), shown);
    if (shown !== null) this.keepInSight(shown);
  }

  /** Show the selection, and the way from it to the leaves and to the outputs. */
  private mark(): void {
    const item = this.selected;
    this.drawing.select(item === null ? null : this.shown(item), item);
    if (item === null) return this.drawing.light(null);
    const marks = reach(this.model, this.tree.nodes(item));
    const lit = new Map<number, number>();
    marks.forEach((mark, node) => {
      if (!mark || (this.tree.folded[node] && node !== item)) return;
      const shown = this.shown(node);
      lit.set(shown, (lit.get(shown) ?? 0) | mark);
    });
    for (const { item: frame } of this.scene.frames) {
      const inside = this.tree.nodes(frame).reduce((all, node) => all | (marks[node] as number), 0);
      if (inside) lit.set(frame, inside);
    }
    this.drawing.light(lit);
  }

  /** The item whose card carries a node: the first user of a parameter that is written inside it. */
  private carrier(item: number): number {
    if (this.tree.isGroup(item) || !this.tree.folded[item]) return item;
    return this.model.users(item)[0]?.node ?? item;
  }

  private shown(item: number): number {
    if (this.tree.isGroup(item)) {
      const closed = this.tree.around(item).filter((group) => !this.scenes.open.has(group));
      return closed.at(-1) ?? item;
    }
    return this.scenes.shownAs(this.carrier(item), undefined);
  }

  private where(item: number): { x: number; y: number; width: number; height: number } | null {
    const frame = this.scene.frames.find((one) => one.item === item);
    if (frame) return frame;
    const found = this.scene.cards.find(({ card }) => card.item === item);
    return found ? { x: found.x, y: found.y, width: found.card.width, height: found.card.height } : null;
  }

  private bring(item: number): void {
    const box = this.where(this.shown(item));
    if (!box) return;
    const most = Math.max(0.8, Math.min(1.2, this.camera.transform.k));
    this.camera.look(box, most);
  }

  private keepInSight(item: number): void {
    const box = this.where(item);
    const seen = this.camera.window;
    if (!box) return;
    const inside = box.x >= seen.x && box.y >= seen.y && box.x + box.width <= seen.x + seen.width && box.y + box.height <= seen.y + seen.height;
    if (!inside) this.camera.centre(box.x + box.width / 2, box.y + box.height / 2);
  }

  private nextTheme(): void {
    const themes: Theme[] = ["auto", "light", "dark"];
    this.setTheme(themes[(themes.indexOf(this.themes.theme) + 1) % 3] as Theme);
  }
}

function itemAt(target: Element): number | null {
  const found = target.closest<SVGElement>("[data-item]")?.dataset.item;
  return found === undefined ? null : Number(found);
}
