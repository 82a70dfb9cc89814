// The theme, light or dark, as the page or the reader's system sets it, and the palette of all drawings.

import type { Header, Pair, Style } from "../graph/payload";

export type Theme = "auto" | "light" | "dark";
export class Themes {
  theme: Theme;
  private readonly system = matchMedia("(prefers-color-scheme: dark)");
  private readonly style: Style;

  constructor(
    private readonly element: HTMLElement,
    header: Header,
    theme: Theme,
    private readonly changed: () => void,
  ) {
    this.style = header.style;
    this.theme = theme;
    this.system.addEventListener("change", this.follow);
    this.apply();
  }

  get dark(): boolean {
    return this.theme === "auto" ? this.system.matches : this.theme === "dark";
  }

  set(theme: Theme): void {
    this.theme = theme;
    this.apply();
    this.changed();
  }

  stop(): void {
    this.system.removeEventListener("change", this.follow);
  }

  color(name: string): string {
    return this.pick(this.style.colors[name] ?? ["#000000", "#ffffff"]);
  }

  /** A color mixed with a fraction `share` of another color, as #rrggbb. */
  mix(one: string, other: string, share: number): string {
    const channels = (name: string) => [1, 3, 5].map((at) => Number.parseInt(this.color(name).slice(at, at + 2), 16));
    const [a, b] = [channels(one), channels(other)];
    const mixed = a.map((value, at) => Math.round(share * value + (1 - share) * (b[at] as number)));
    return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
  }

  /** The color of a step of the scale, from low to high. */
  step(at: number): string {
    return this.pick(this.style.scale[at] as Pair);
  }

  get steps(): number {
    return this.style.scale.length;
  }

  get nonfinite(): string {
    return this.pick(this.style.nonfinite);
  }

  /** The fill for the index of a name: 0 is neutral, and larger indices repeat the colors. */
  category(at: number): string {
    const { categories } = this.style;
    return this.pick(categories[at === 0 ? 0 : 1 + ((at - 1) % (categories.length - 1))] as Pair);
  }

  private pick(pair: Pair): string {
    return pair[this.dark ? 1 : 0];
  }

  private apply(): void {
    this.element.dataset.theme = this.dark ? "dark" : "light";
    for (const name of Object.keys(this.style.colors))
      this.element.style.setProperty(`--${name.replace("_", "-")}`, this.color(name));
  }

  private readonly follow = (): void => {
    if (this.theme === "auto") this.set("auto");
  };
}
