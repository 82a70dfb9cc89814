// Breadcrumbs: the modules that contain the selection, or else the visible part of the picture.

import { html } from "../dom";
import { say } from "../language";

export interface Crumb {
  /** The group; null for the whole graph. */
  readonly item: number | null;
  readonly name: string;
}

export class Crumbs {
  readonly element = html("nav", { class: "crumbs", "aria-label": say("Modules around") });
  private shown: string | null = null;

  constructor(private readonly go: (item: number | null) => void) {}

  show(crumbs: readonly Crumb[]): void {
    const key = crumbs.map(({ item }) => item).join();
    if (key === this.shown) return;
    this.shown = key;
    const parts = crumbs.flatMap(({ item, name }, at) => {
      const last = at === crumbs.length - 1;
      const crumb = html("button", { type: "button", ...(last ? { "aria-current": "location" } : {}) }, name);
      crumb.addEventListener("click", () => this.go(item));
      return at ? [html("span", { class: "quiet", "aria-hidden": "true" }, "›"), crumb] : [crumb];
    });
    this.element.replaceChildren(...parts);
    // Scroll to the last breadcrumbs in the next frame, because scrolling now would force a layout of the page.
    requestAnimationFrame(() => (this.element.scrollLeft = this.element.scrollWidth));
  }
}
