// The keyboard. Keys go to whatever holds the focus inside the view; fields keep theirs.

import type { View } from "./view";

export function keys(event: KeyboardEvent, view: View): void {
  const target = event.composedPath()[0] as Element;
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select")) return;
  const act = ACTS[event.key];
  if (!act || (target.matches("button, a") && (event.key === "Enter" || event.key === " "))) return;
  event.preventDefault();
  act(view, event);
}

const ACTS: Record<string, (view: View, event: KeyboardEvent) => void> = {
  "/": (view) => view.find(),
  f: (view) => view.fit(),
  "+": (view) => view.zoom(1.3),
  "=": (view) => view.zoom(1.3),
  "-": (view) => view.zoom(1 / 1.3),
  p: (view) => view.play(),
  ".": (view) => view.playStep(1),
  ",": (view) => view.playStep(-1),
  Escape: (view) => view.escape(),
  ArrowUp: (view) => view.step(0, -1),
  ArrowDown: (view) => view.step(0, 1),
  ArrowLeft: (view) => view.step(-1, 0),
  ArrowRight: (view) => view.step(1, 0),
  Enter: (view, event) => {
    if (view.selected !== null && view.tree.isGroup(view.selected)) void view.toggle(view.selected, event.shiftKey);
  },
};
