// Keyboard shortcuts: a table of keys and actions, which the key "?" shows.

import { button, html } from "../dom";
import { say } from "../language";

/** Actions that keys can start. */
export interface Keyed {
  find(): void;
  fit(): void;
  zoom(factor: number): void;
  play(): void;
  playStep(by: number): void;
  escape(): void;
  step(dx: number, dy: number): void;
  openSelected(inside: boolean): void;
  openAll(open: boolean): void;
  back(): void;
  forward(): void;
  help(): void;
}

interface Key {
  /** Names as in `KeyboardEvent.key`; "Mod+" is Ctrl or ⌘. */
  readonly keys: readonly string[];
  /** Name of the keys in the list, before the action; "" for an alias of the previous entry. */
  readonly name: string;
  readonly does: string;
  readonly act: (view: Keyed, event: KeyboardEvent) => void;
}

const KEYS: readonly Key[] = [
  { keys: ["/"], name: "/", does: "search", act: (view) => view.find() },
  { keys: ["ArrowUp"], name: "↑ ↓ ← →", does: "select the next card in that direction", act: (view) => view.step(0, -1) },
  { keys: ["ArrowDown"], name: "", does: "", act: (view) => view.step(0, 1) },
  { keys: ["ArrowLeft"], name: "", does: "", act: (view) => view.step(-1, 0) },
  { keys: ["ArrowRight"], name: "", does: "", act: (view) => view.step(1, 0) },
  { keys: ["Enter"], name: "Enter", does: "open or close the selected group; with Shift all that is inside", act: (view, event) => view.openSelected(event.shiftKey) },
  { keys: ["Escape"], name: "Esc", does: "end the selection, or the run of backward", act: (view) => view.escape() },
  { keys: ["o"], name: "o", does: "open all groups", act: (view) => view.openAll(true) },
  { keys: ["c"], name: "c", does: "close all groups", act: (view) => view.openAll(false) },
  { keys: ["u", "Mod+z"], name: "u, Ctrl+Z", does: "back: undo opening, closing or selecting", act: (view) => view.back() },
  { keys: ["r", "Mod+y", "Mod+Z"], name: "r, Ctrl+Y", does: "forward again", act: (view) => view.forward() },
  { keys: ["f"], name: "f", does: "see all", act: (view) => view.fit() },
  { keys: ["+", "="], name: "+", does: "larger", act: (view) => view.zoom(1.3) },
  { keys: ["-"], name: "−", does: "smaller", act: (view) => view.zoom(1 / 1.3) },
  { keys: ["p"], name: "p", does: "play backward, or stop", act: (view) => view.play() },
  { keys: ["."], name: ".", does: "play one step of backward", act: (view) => view.playStep(1) },
  { keys: [","], name: ",", does: "go back one step of backward", act: (view) => view.playStep(-1) },
  { keys: ["?"], name: "?", does: "this list", act: (view) => view.help() },
];

const ACTS = new Map(KEYS.flatMap(({ keys, act }) => keys.map((key) => [key, act] as const)));

/** Start the action of a key, unless the focused field, button or link handles the key itself. */
export function press(event: KeyboardEvent, view: Keyed): void {
  const target = event.composedPath()[0];
  if (event.defaultPrevented || event.altKey || (target instanceof Element && taken(target, event.key))) return;
  const act = ACTS.get(event.ctrlKey || event.metaKey ? `Mod+${event.key}` : event.key);
  if (!act) return;
  event.preventDefault();
  act(view, event);
}

function taken(target: Element, key: string): boolean {
  if (target.closest("dialog")) return true;
  if (target.matches("input, select, textarea, [contenteditable]")) return true;
  return target.matches("button, a") && (key === "Enter" || key === " ");
}

/** The dialog with the list of keys, which is closed at first. */
export function keyList(): HTMLDialogElement {
  const rows = KEYS.filter(({ name }) => name).flatMap(({ name, does }) => [html("dt", {}, html("kbd", {}, name)), html("dd", {}, say(does))]);
  const list: HTMLDialogElement = html(
    "dialog",
    { class: "keys", "aria-label": say("Keys") },
    html("header", {}, html("h2", {}, say("Keys")), button("×", say("Close (Esc)"), () => list.close())),
    html("dl", {}, ...rows),
    html("p", { class: "quiet" }, say("Drag to move, scroll or pinch to zoom, double click to open or close a group.")),
  );
  list.addEventListener("click", (event) => {
    if (event.target === list) list.close();
  });
  return list;
}
