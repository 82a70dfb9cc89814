// The field to search in, and what was found below it.

import { html } from "../dom";
import { shaped } from "../graph/units";
import type { Model } from "../graph/model";
import { search } from "../graph/search";
import type { Tree } from "../graph/tree";

const MOST = 60;

export class SearchBox {
  readonly element: HTMLElement;
  private readonly input = html("input", {
    type: "search",
    role: "combobox",
    "aria-controls": "found",
    "aria-expanded": "false",
    autocomplete: "off",
    placeholder: "Search   /",
    "aria-label": "Search: name, op:, module:, shape:, dtype:, device:, finding:",
    title: "A name, or op:addmm  module:attn  class:linear  attribute:exponent=2  shape:8,128  dtype:f32  device:cpu  finding:nan",
  });
  private readonly list = html("div", { class: "found", id: "found", role: "listbox", "aria-label": "Found" });

  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly go: (item: number) => void,
  ) {
    this.element = html("div", { class: "search" }, this.input, this.list);
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
    const { model, tree } = this;
    const { groups, nodes, total } = search(model, tree, this.input.value, MOST);
    const rows = groups.map((item) => this.row(item, tree.name(item), `group · ${tree.path(item)}`));
    for (const node of nodes) {
      const meta = model.firstOutput(node);
      const said = [model.text("label", node) ? model.operation(node) : "", meta ? shaped(meta) : "", model.text("module", node)];
      rows.push(this.row(node, model.caption(node), said.filter(Boolean).join(" · ")));
    }
    if (total > nodes.length) rows.push(html("p", { class: "quiet" }, `${total.toLocaleString("en")} nodes match; ${nodes.length} are listed.`));
    if (!rows.length && this.input.value.trim()) rows.push(html("p", { class: "quiet" }, "Nothing matches."));
    this.fill(rows);
  }

  private fill(rows: readonly HTMLElement[]): void {
    this.list.replaceChildren(...rows);
    this.input.setAttribute("aria-expanded", String(rows.length > 0));
    this.input.removeAttribute("aria-activedescendant");
  }

  private row(item: number, name: string, said: string): HTMLElement {
    const row = html("button", { type: "button", role: "option", "data-found": item, id: `found-${item}`, "aria-selected": "false" }, html("b", {}, name), html("span", { class: "quiet" }, said));
    row.addEventListener("click", () => {
      this.fill([]);
      this.go(item);
    });
    return row;
  }

  private key(event: KeyboardEvent): void {
    event.stopPropagation();
    const rows = [...this.list.querySelectorAll("button")];
    const at = rows.findIndex((row) => row.classList.contains("at"));
    if (event.key === "Escape") {
      this.input.value = "";
      this.fill([]);
      this.input.blur();
    } else if (event.key === "Enter") rows[Math.max(0, at)]?.click();
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
