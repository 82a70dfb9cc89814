// Entry point: `mount` shows the view of a payload in an element.

import { Arranger } from "./layout/arranger";
import { html } from "./dom";
import { Model } from "./graph/model";
import { decode } from "./graph/payload";
import { setLanguage } from "./language";
import styles from "./view.css";
import { type Options, View } from "./view";

export * as units from "./graph/units";

export interface Handle {
  /** Select a node and show it; null clears the selection. */
  select(node: number | null): void;
  setTheme(theme: "auto" | "light" | "dark"): void;
  colorBy(by: NonNullable<Options["colorBy"]>): void;
  /** The current picture as SVG text. */
  svg(): string;
  /** Resolves when the first picture is drawn. */
  readonly ready: Promise<void>;
  destroy(): void;
}

export function mount(element: HTMLElement, payload: string, options: Options = {}): Handle {
  setLanguage(options.words ?? {});
  // A shadow tree keeps the styles of the page and of the view apart. A script creates the sheet, as a
  // content security policy may forbid style elements.
  const host = html("div");
  host.style.cssText = "display:block;width:100%;height:100%;min-height:inherit";
  element.replaceChildren(host);
  const shadow = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(styles);
  shadow.adoptedStyleSheets = [sheet];
  const inside = html("div", { class: "view" });
  shadow.append(inside);

  let view: View | null = null;
  let gone = false;
  const ready = (async () => {
    const arranger = new Arranger(options.workers ?? true);
    const model = new Model(await decode(payload));
    if (gone) return arranger.stop();
    view = new View(inside, model, arranger, options);
    await view.start();
    performance.mark("graph drawn");
  })();
  ready.catch((error: unknown) => {
    inside.replaceChildren(html("p", { class: "failed", role: "alert" }, `The graph could not be shown: ${String(error)}`));
  });
  const later = (act: (view: View) => void): void => {
    ready.then(() => view && !gone && act(view), () => undefined);
  };
  return {
    ready,
    select: (node) => later((shown) => void shown.select(node, true)),
    setTheme: (theme) => later((shown) => shown.setTheme(theme)),
    colorBy: (by) => later((shown) => shown.colorBy(by)),
    svg: () => view?.svg() ?? "",
    destroy: () => {
      gone = true;
      view?.stop();
      host.remove();
    },
  };
}
