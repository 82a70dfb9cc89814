// The legend of the colors, and the menu that selects what the colors show.

import { COLOR_NAMES, type ColorBy, type Colors } from "../drawing/colors";
import { html } from "../dom";
import { say } from "../language";

export class LegendBox {
  readonly element = html("div", { class: "legend" });
  private readonly choice = html("select", { "aria-label": say("Colour by"), class: "color-by" });
  private readonly entries = html("div", { class: "entries" });
  /** A button for each sample, position and input with a known influence. */
  private readonly lanes = html("div", { class: "lanes", role: "group", "aria-label": say("Influence of") });

  constructor(
    private readonly colors: Colors,
    changed: (by: ColorBy) => void,
  ) {
    for (const [by, name] of Object.entries(COLOR_NAMES) as [ColorBy, string][]) {
      const option = html("option", { value: by }, say(name));
      option.disabled = !colors.available(by);
      if (option.disabled) option.textContent = say("{} (not recorded)", say(name));
      this.choice.append(option);
    }
    this.choice.addEventListener("change", () => changed(this.choice.value as ColorBy));
    for (const [lane, name] of colors.lanes.entries()) {
      if (colors.lanes.length < 2) break;
      const button = html("button", { type: "button" }, name);
      button.addEventListener("click", () => {
        colors.lane = lane;
        changed("influence");
      });
      this.lanes.append(button);
    }
    this.element.append(html("label", {}, say("Colour: "), this.choice), this.lanes, this.entries);
  }

  draw(): void {
    this.choice.value = this.colors.by;
    const chosen = this.colors.by === "influence" ? this.colors.lane : -1;
    for (const [lane, button] of [...this.lanes.children].entries()) button.setAttribute("aria-pressed", String(lane === chosen));
    const { entries, scale } = this.colors.legend();
    const rows: HTMLElement[] = [];
    if (scale) {
      const steps = scale.fills.map((fill) => swatch(fill, "none", false));
      rows.push(html("div", { class: "scale", title: scale.note }, html("span", {}, scale.low), ...steps, html("span", {}, scale.high)), html("span", { class: "quiet note" }, scale.note));
    }
    for (const { fill, line, said, hatched } of entries) rows.push(html("div", { class: "entry" }, swatch(fill, line, hatched), html("span", {}, said)));
    this.entries.replaceChildren(...rows);
  }
}

function swatch(fill: string, line: string, hatched: boolean): HTMLElement {
  const element = html("i", { class: hatched ? "swatch hatched" : "swatch" });
  element.style.backgroundColor = fill;
  if (line !== "none") element.style.borderColor = line;
  else element.style.borderWidth = "0";
  return element;
}
