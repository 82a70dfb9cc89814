// Colors of cards: by role or by name (device, dtype, module), and bars for measured sizes.

import { type Cards, type Role, SIGNS } from "./cards";
import type { Mark } from "../graph/payload";
import { bytes, number, seconds } from "../graph/units";
import { spread } from "../graph/spread";
import type { Model } from "../graph/model";
import { say } from "../language";
import type { Themes } from "./theme";
import type { Tree } from "../graph/tree";

export type ColorBy = "role" | "device" | "gradient" | "seconds" | "saved" | "dtype" | "module" | "difference" | "influence";

export const COLOR_NAMES: Record<ColorBy, string> = {
  role: "role",
  device: "device",
  gradient: "gradient norm",
  seconds: "backward time",
  saved: "saved bytes",
  dtype: "dtype",
  module: "module",
  difference: "difference",
  influence: "influence",
};

export interface Paint {
  readonly fill: string;
  /** The colour of a measured size, for a bar beside the card; null if none is selected. */
  readonly gauge: string | null;
  /** The meaning of the color as text, for the legend and for screen readers. */
  readonly said: string;
}

export interface Legend {
  readonly title: string;
  readonly entries: { fill: string; line: string; said: string; hatched: boolean }[];
  readonly scale: { fills: string[]; low: string; high: string; note: string } | null;
}

interface Sizes {
  readonly of: (node: number) => number; // NaN if not recorded
  /** How a group's size is computed from the sizes of its nodes. */
  readonly join: "sum" | "median" | "largest";
  readonly say: (value: number) => string;
  /** The end of a scale that begins at 0. Without `full`, the scale spans the visible sizes. */
  readonly full?: number;
  /** Text for a node without a size. */
  readonly missing: string;
}

const MOST_NAMES = 12;
const ROLES = ["input", "parameter", "buffer", "operation", "transfer", "collective", "output", "group", "data", "untracked", "failed"] as const;
const MARKS = ["removed", "added", "changed"] as const;
const TINT = 0.16; // fraction of the difference's color in the fill
const MEANINGS: Partial<Record<string, string>> = { transfer: "copy between devices", collective: "sent between ranks", group: "closed group", failed: "raised an exception", data: "data, no gradient", untracked: "made no node: frozen, or gradients were off" };

export class Colors {
  by: ColorBy = "role";
  /** Index of the selected influence. */
  lane = 0;
  private names = new Map<string, number>();
  private roles = new Set<Role>();
  private range: [number, number] = [0, 0];
  /** Cache: item -> size, and number of NaN and Inf elements in the item's gradients. */
  private readonly known = new Map<number, { size: number; spoilt: number }>();
  private seen = { missing: false, nonfinite: false, zero: false };

  constructor(
    private readonly model: Model,
    private readonly tree: Tree,
    private readonly cards: Cards,
    private readonly themes: Themes,
  ) {}

  available(by: ColorBy): boolean {
    const { model } = this;
    if (by === "gradient") return model.recordedGradients;
    if (by === "seconds") return model.recordedSeconds;
    if (by === "saved") return model.savedBytes.some((size) => size > 0);
    if (by === "module") return model.column("module").table.length > 1;
    if (by === "difference") return model.difference !== null;
    if (by === "influence") return model.influences.length > 0;
    return true;
  }

  /** The names of the influences. */
  get lanes(): string[] {
    return this.model.influences;
  }

  /** The default: differences of two graphs or influences if there are any, else gradients. */
  get usual(): ColorBy {
    return (["difference", "influence", "gradient"] as const).find((by) => this.available(by)) ?? "role";
  }

  choose(by: ColorBy): void {
    this.by = this.available(by) ? by : "role";
    this.known.clear();
    this.countNames();
  }

  paint(item: number): Paint {
    if (this.by === "difference") return this.paintMark(item);
    const sizes = this.sizes();
    if (this.by !== "role" && !sizes) return this.paintNames(item);
    const { role } = this.cards.card(item);
    const isUnreached = this.by === "influence" && sizes !== null && Number.isNaN(this.sizeOf(item, sizes).size);
    const fill = this.themes.color(role === "failed" || isUnreached ? "background" : role);
    if (role === "data" || role === "untracked") return { fill, gauge: null, said: MEANINGS[role] ?? role };
    return { fill, ...(sizes ? this.gauge(this.sizeOf(item, sizes), sizes) : { gauge: null, said: role }) };
  }

  legend(): Legend {
    const title = COLOR_NAMES[this.by];
    const line = this.themes.color("operation_line");
    const sizes = this.sizes();
    const roles = ROLES.filter((role) => this.roles.has(role)).map((role) => ({
      fill: this.themes.color(role === "failed" ? "background" : role),
      line: this.themes.color(role === "failed" ? "error" : `${role}_line`),
      said: say(MEANINGS[role] ?? role),
      hatched: false,
    }));
    if (this.by === "role") return { title, entries: roles, scale: null };
    if (sizes) {
      const entries = [];
      if (this.seen.nonfinite) entries.push({ fill: this.themes.nonfinite, line, said: say("NaN or Inf"), hatched: true });
      if (this.seen.zero && !sizes.full) entries.push({ fill: this.themes.category(0), line, said: "0", hatched: false });
      if (this.seen.missing) entries.push({ fill: this.themes.color("background"), line, said: say(sizes.missing), hatched: false });
      const fills = Array.from({ length: this.themes.steps }, (_, at) => this.themes.step(at));
      const [low, high] = this.range;
      const note = this.roles.has("group") ? say(`left bar; for a group, the ${sizes.join}`) : say("left bar");
      return { title, entries: [...entries, ...roles], scale: high > 0 ? { fills, low: sizes.say(low), high: sizes.say(high), note } : null };
    }
    if (this.by === "difference") {
      const entries = MARKS.map((mark) => ({ fill: this.tint(mark), line: this.themes.color(mark), said: `${SIGNS[mark]} ${say(mark)}`, hatched: false }));
      return { title, entries, scale: null };
    }
    const shown = [...this.names].slice(0, MOST_NAMES);
    const entries = shown.map(([name, at]) => ({ fill: this.themes.category(at), line, said: name || say("none"), hatched: false }));
    if (this.names.size > MOST_NAMES)
      entries.push({ fill: "none", line: "none", said: say("and {} more", this.names.size - MOST_NAMES), hatched: false });
    return { title, entries, scale: null };
  }

  private sizes(): Sizes | null {
    const { model } = this;
    switch (this.by) {
      case "gradient":
        return { of: (node) => model.norm(node), join: "median", say: number, missing: "not recorded" };
      case "seconds":
        return { of: (node) => model.seconds(node), join: "sum", say: seconds, missing: "not recorded" };
      case "saved":
        return { of: (node) => model.savedBytes[node] as number, join: "sum", say: bytes, missing: "not recorded" };
      case "influence":
        return { of: (node) => model.influence(this.lane, node), join: "largest", say: percent, full: 1, missing: "not reached in the module" };
      default:
        return null;
    }
  }

  /** Set the visible cards, which determine the legend and the range of the scale. */
  measure(items: Iterable<number>): void {
    this.roles = this.cards.roles(items);
    const sizes = this.sizes();
    if (!sizes) return;
    let [low, high] = [Number.POSITIVE_INFINITY, 0];
    this.seen = { missing: false, nonfinite: false, zero: false };
    for (const item of items) {
      const { size: value, spoilt } = this.sizeOf(item, sizes);
      if (spoilt) this.seen.nonfinite = true;
      else if (Number.isNaN(value)) this.seen.missing = true;
      else if (value === 0) this.seen.zero = true;
      else if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
    this.range = sizes.full ? [0, sizes.full] : [Math.min(low, high), high];
  }

  private sizeOf(item: number, sizes: Sizes): { size: number; spoilt: number } {
    let known = this.known.get(item);
    if (!known) this.known.set(item, (known = { size: this.joined(item, sizes), spoilt: this.spoilt(item) }));
    return known;
  }

  private joined(item: number, { of, join }: Sizes): number {
    if (join === "median") return spread(this.model, this.tree.nodes(item)).median;
    let joined = Number.NaN;
    for (const node of this.tree.nodes(item)) {
      const value = of(node);
      if (Number.isNaN(value)) continue;
      if (Number.isNaN(joined)) joined = value;
      else joined = join === "sum" ? joined + value : Math.max(joined, value);
    }
    return joined;
  }

  private spoilt(item: number): number {
    if (this.by !== "gradient" || !this.model.recordedNonfinite) return 0;
    return this.tree.nodes(item).reduce((sum, node) => sum + this.model.nonfinite(node), 0);
  }

  private gauge({ size: value, spoilt }: { size: number; spoilt: number }, sizes: Sizes): { gauge: string; said: string } {
    if (spoilt) return { gauge: this.themes.nonfinite, said: `${spoilt} NaN or Inf` };
    if (Number.isNaN(value)) return { gauge: this.themes.color("background"), said: sizes.missing };
    if (value === 0 && !sizes.full) return { gauge: this.themes.category(0), said: "0" };
    const [low, high] = this.range;
    const spreads = high > low ? Math.log(value / low) / Math.log(high / low) : 1;
    const share = sizes.full ? value / sizes.full : spreads;
    const step = Math.max(0, Math.min(this.themes.steps - 1, Math.floor(share * this.themes.steps)));
    return { gauge: this.themes.step(step), said: sizes.say(value) };
  }

  private paintMark(item: number): Paint {
    const marks = new Set<Mark>();
    for (const node of this.tree.nodes(item)) for (const mark of [this.model.mark(node)]) if (mark) marks.add(mark);
    const [mark] = marks;
    const fill = mark ? this.tint(marks.size === 1 ? mark : "changed") : this.themes.color("operation");
    return { fill, gauge: null, said: [...marks].join(", ") || "the same in both" };
  }

  private tint(mark: Mark): string {
    return this.themes.mix(mark, "background", TINT);
  }

  private nameOf(node: number): string {
    if (this.by === "module") return topModule(this.model.text("module", node));
    const meta = this.model.firstOutput(node);
    return (this.by === "device" ? meta?.device : meta?.dtype) ?? "";
  }

  private countNames(): void {
    const counts = new Map<string, number>();
    if (this.by === "device" || this.by === "dtype" || this.by === "module")
      for (let node = 0; node < this.model.count; node++) {
        const name = this.nameOf(node);
        counts.set(name, (counts.get(name) ?? 0) + 1);
      }
    const neutral = (name: string) => name === "" || name === "cpu";
    const first = [...counts.keys()];
    if (this.by !== "module") first.sort();
    const ordered = [...first.filter(neutral), ...first.filter((name) => !neutral(name))];
    let next = 0;
    this.names = new Map(ordered.map((name) => [name, neutral(name) ? 0 : ++next]));
  }

  private paintNames(item: number): Paint {
    const counts = new Map<string, number>();
    for (const node of this.tree.nodes(item)) {
      const name = this.nameOf(node);
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    const [most = ["", 0]] = [...counts].sort((a, b) => b[1] - a[1]);
    const said = counts.size > 1 ? `mostly ${most[0] || "none"}` : most[0] || "none";
    return { fill: this.themes.category(this.names.get(most[0]) ?? 0), gauge: null, said };
  }
}

function percent(value: number): string {
  return `${Math.round(100 * value)}%`;
}

/** The part of a module path that determines the color: the first name and the number of the block. */
function topModule(path: string): string {
  const [first = "", second = ""] = path.split(".");
  return /^\d+$/.test(second) ? `${first}.${second}` : first;
}
