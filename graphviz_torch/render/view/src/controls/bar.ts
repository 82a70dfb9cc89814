// The toolbar: the search field, and buttons for actions on the whole picture.

import { button as plainButton, html } from "../dom";
import { say } from "../language";
import type { Theme } from "../drawing/theme";

export interface Actions {
  back(): void;
  forward(): void;
  openAll(open: boolean): void;
  zoom(factor: number): void;
  fit(): void;
  saveSvg(): void;
  savePng(): void;
  nextTheme(): void;
  help(): void;
}

const THEMES: Record<Theme, [sign: string, words: string]> = {
  auto: ["◐", "like the system"],
  light: ["☀", "light"],
  dark: ["☾", "dark"],
};

const button = (label: string, title: string, press: () => void): HTMLButtonElement => plainButton(say(label), say(title), press);

export class Bar {
  readonly element: HTMLElement;
  private readonly theme: HTMLButtonElement;

  constructor(search: HTMLElement, actions: Actions) {
    const more = button("⋯", "More buttons", () => {
      more.setAttribute("aria-expanded", String(this.element.classList.toggle("opened")));
    });
    more.classList.add("more");
    more.setAttribute("aria-expanded", "false");
    this.theme = button("", "", () => actions.nextTheme());
    // On a narrow screen, "more" shows the additional buttons.
    const extra = (...buttons: HTMLElement[]) => html("span", { class: "buttons extra" }, ...buttons);
    this.element = html(
      "div",
      { class: "bar", role: "toolbar", "aria-label": say("View") },
      search,
      html("span", { class: "buttons less" }, button("↶", "Back (u)", () => actions.back()), button("↷", "Forward (r)", () => actions.forward())),
      html("span", { class: "space" }),
      extra(
        button("Open all", "Open all groups that the picture has space for (o)", () => actions.openAll(true)),
        button("Close all", "Close all groups (c)", () => actions.openAll(false)),
      ),
      html(
        "span",
        { class: "buttons" },
        html("span", { class: "buttons less" }, button("−", "Smaller (−)", () => actions.zoom(1 / 1.3)), button("+", "Larger (+)", () => actions.zoom(1.3))),
        button("Fit", "See all (f)", () => actions.fit()),
      ),
      extra(
        button("SVG", "Save the picture as SVG", () => actions.saveSvg()),
        button("PNG", "Save the picture as PNG", () => actions.savePng()),
      ),
      html("span", { class: "buttons less" }, this.theme, button("?", "Keys (?)", () => actions.help())),
      more,
    );
    this.showTheme("auto"); // sets the button's text until the first picture is drawn
  }

  showTheme(theme: Theme): void {
    const [sign, words] = THEMES[theme];
    this.theme.textContent = sign;
    this.theme.title = say("Theme: {}. Press for the next", say(words));
    this.theme.setAttribute("aria-label", this.theme.title);
  }
}
