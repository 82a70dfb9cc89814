// The search field, the list of results, and moving from one result to the next.

import { html } from "../dom";
import { say } from "../language";
import { shaped } from "../graph/units";
import type { Model } from "../graph/model";
import { search } from "../graph/search";
import type { Tree } from "../graph/tree";

const MOST = 60; // most rows of the list

export class SearchBox {
  readonly element: HTMLElement;
  /** The items found, groups first. */
  found: readonly number[] = [];
  /** Index of the current result; -1 before a result was visited. */
  private at = -1;
  private asked = "";
  private readonly input = html("input", {
    type: "search",
    role: "combobox",
    "aria-controls": "found",
    "aria-expanded": "false",
    autocomplete: "off",
    placeholder: say("Search   /"),
    "aria-label": say("Search: name, op:, module:, shape:, dtype:, device:, finding:"),
    title: say("A name, or op:addmm  module:attn  class:linear  attribute:exponent=2  shape:8,128  dtype:f32  device:cpu  finding:nan\nEnter leads to the next, Shift+Enter to the one before"),
  });
  private readonly count = html("output", { class: "count", "aria-live": "polite" });
  private readonly list = html("div", { class: "found", id: "found", role: "listbox", "aria-label": say("Found") });

  /**
   * @param go moves the view to an item.
   * @param changed is called when the results change.
   */
  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly go: (item: number) => void,
    private readonly changed: () => void,
  ) {
    this.element = html("div", { class: "search" }, this.input, this.count, this.list);
    this.input.addEventListener("input", () => this.find());
    this.input.addEventListener("focus", () => this.find());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("focusout", (event) => {
      if (!this.element.contains(event.relatedTarget as Node | null)) this.fill([]);
    });
  }

  focus(): void {
    this.input.focus();
    this.input.select();
  }

  private find(): void {
    const { model, tree, input } = this;
    const { groups, nodes } = search(model, tree, input.value);
    if (input.value !== this.asked) {
      this.asked = input.value;
      this.found = [...groups, ...nodes];
      this.at = -1;
      this.changed();
      this.showCount();
    }
    const rows = groups.slice(0, MOST / 2).map((item) => this.row(item, tree.name(item), `group · ${tree.path(item)}`));
    for (const node of nodes.slice(0, MOST)) {
      const meta = model.firstOutput(node);
      const said = [model.text("label", node) ? model.operation(node) : "", meta ? shaped(meta) : "", model.text("module", node)];
      rows.push(this.row(node, model.caption(node), said.filter(Boolean).join(" · ")));
    }
    if (nodes.length > MOST) rows.push(html("p", { class: "quiet" }, say("{} nodes match; {} are listed.", nodes.length.toLocaleString("en"), MOST)));
    if (!rows.length && input.value.trim()) rows.push(html("p", { class: "quiet" }, say("Nothing matches.")));
    this.fill(rows);
  }

  private fill(rows: readonly HTMLElement[]): void {
    this.list.replaceChildren(...rows);
    this.input.setAttribute("aria-expanded", String(rows.length > 0));
    this.input.removeAttribute("aria-activedescendant");
  }

  private row(item: number, name: string, said: string): HTMLElement {
    const row = html("button", { type: "button", role: "option", "data-found": item, id: `found-${item}`, "aria-selected": "false" }, html("b", {}, name), html("span", { class: "quiet" }, said));
    row.addEventListener("click", () => this.lead(this.found.indexOf(item)));
    return row;
  }

  /** Move to the result with an index; after the last comes the first. */
  private lead(at: number): void {
    const { found } = this;
    if (!found.length) return;
    this.at = (at + found.length) % found.length;
    this.fill([]);
    this.showCount();
    this.go(found[this.at] as number);
  }

  private showCount(): void {
    const { length } = this.found;
    const all = length.toLocaleString("en");
    this.count.textContent = !this.asked.trim() ? "" : this.at < 0 ? (length ? all : say("none")) : say("{} of {}", (this.at + 1).toLocaleString("en"), all);
  }

  private key(event: KeyboardEvent): void {
    event.stopPropagation();
    const rows = [...this.list.querySelectorAll("button")];
    const at = rows.findIndex((row) => row.classList.contains("at"));
    if (event.key === "Escape") {
      this.input.value = "";
      this.find();
      this.input.blur();
    } else if (event.key === "Enter" && at >= 0) rows[at]?.click();
    else if (event.key === "Enter") this.lead(this.at + (event.shiftKey ? -1 : 1));
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const next = Math.max(0, Math.min(rows.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
      rows.forEach((row, i) => {
        row.classList.toggle("at", i === next);
        row.setAttribute("aria-selected", String(i === next));
      });
      this.input.setAttribute("aria-activedescendant", rows[next]?.id ?? "");
      rows[next]?.scrollIntoView({ block: "nearest" });
    }
  }
}
