// The scene: the open groups, their levels, and the positions of all items.

import type { Arranger } from "../layout/arranger";
import type { Card, Cards } from "./cards";
import type { Placed, Task } from "../layout/layout";
import type { Link, Slicer } from "../graph/slice";
import { TOP, type Tree } from "../graph/tree";

export interface PlacedCard {
  readonly card: Card;
  readonly x: number;
  readonly y: number;
}

export interface Frame {
  readonly item: number;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
  readonly depth: number;
}

export interface Path {
  readonly points: number[];
  /** The link; null for a segment of an edge between a frame and an item inside the frame. */
  readonly link: Link | null;
  /** Items at the ends; the level itself if an end is on the level's frame. */
  readonly from: number;
  readonly to: number;
  readonly far: boolean;
  /** True if the edge is drawn as two stubs. */
  readonly cut: boolean;
}

/** An arrow in place of edges that are drawn only if one of their ends is selected, because they are long and many. */
export interface Stub {
  readonly item: number;
  readonly side: "from" | "to";
  readonly x: number;
  readonly y: number;
  /** The items at the other ends. */
  readonly others: number[];
}

export interface Scene {
  readonly cards: PlacedCard[];
  readonly frames: Frame[];
  readonly paths: Path[];
  readonly stubs: Stub[];
  readonly width: number;
  readonly height: number;
}

/** Maximum number of cards, for readability and for smooth movement in the browser. */
export const MOST_CARDS = 1500;
const OPEN_AT_START = 60;
/** Minimum number of cards at the start: groups are opened until there are more. */
const FEW_CARDS = 8;
/** Minimum number of cards when groups are closed to fit the picture into the window. */
const LEAST_CARDS = 4;
/** A group with a larger fraction of all nodes is not closed to fit the window, since its box would hide the graph. */
const MOST_HIDDEN = 0.8;
const MOST_AT_START = 150;
const MOST_BOWS = 8; // most bows of one level
const HEADER = 24;
const FRAME_PADDING = 14;

export class Scenes {
  /** Open groups, in the order in which they were opened. */
  readonly open: Set<number>;

  constructor(
    private readonly tree: Tree,
    private readonly cards: Cards,
    private readonly slicer: Slicer,
    private readonly arranger: Arranger,
    asStill: readonly number[] | null,
    first: Iterable<number>,
    inUnits: boolean,
  ) {
    this.open = new Set((asStill ?? []).map((group) => tree.count + group).filter((item) => !tree.isUnit(item)));
    if (!asStill) this.openFirst();
    this.openAround(first, inUnits);
  }

  /** Open as many groups as fit the first picture. */
  private openFirst(): void {
    const { tree } = this;
    // A small graph opens completely; in a larger one, only the first of identical groups opens.
    const small = tree.drawn <= OPEN_AT_START;
    // A module that a still picture draws as one box stays closed here at first.
    this.openAll(OPEN_AT_START, (item) => !tree.isUnit(item) && !tree.isStack(item) && (small || (tree.like(item) === item - tree.count && !tree.isChain(item))));
    this.openLargest();
  }

  /** Open the groups that contain these nodes, as far as they fit the first picture. */
  private openAround(nodes: Iterable<number>, inUnits: boolean): void {
    let seen = this.visible().size;
    const wanted = new Set([...nodes].flatMap((node) => this.tree.around(node)));
    for (const group of [...wanted].sort((a, b) => this.tree.depthOf(a) - this.tree.depthOf(b))) {
      const [outer] = this.tree.around(group);
      const more = this.tree.items(group).length - 1;
      if (this.open.has(group) || (this.tree.isUnit(group) && !inUnits) || (outer !== undefined && !this.open.has(outer)) || seen + more > MOST_AT_START) continue;
      this.open.add(group);
      seen += more;
    }
  }

  /** If there are few cards, as with one module around everything, open the largest group. */
  private openLargest(): void {
    const { tree } = this;
    for (;;) {
      const seen = [...this.visible()];
      const fits = (item: number) => tree.isGroup(item) && !tree.isChain(item) && !tree.isUnit(item) && !tree.isStack(item) && seen.length - 1 + tree.items(item).length <= MOST_AT_START;
      if (seen.length >= FEW_CARDS || !seen.some(fits)) return;
      const size = (item: number) => tree.nodes(item).length;
      this.open.add(seen.filter(fits).reduce((most, item) => (size(item) > size(most) ? item : most)));
    }
  }

  /** Open a group and the groups that contain it. If there are too many cards, close other groups, the oldest first. */
  reveal(group: number): void {
    const wanted = [...this.tree.around(group).reverse(), group];
    for (const item of wanted) {
      this.open.delete(item);
      this.open.add(item);
    }
    for (const item of this.open) {
      if (this.visible().size <= MOST_CARDS) break;
      if (!wanted.includes(item)) this.open.delete(item);
    }
  }

  /** Close the innermost open groups, except those around a node that must stay visible. Return false if too few cards would remain. */
  closeInnermost(node: number | null): boolean {
    const { tree } = this;
    const around = new Set(node === null ? [] : tree.around(node));
    const hides = (group: number) => tree.nodes(group).length / tree.count;
    const closable = [...this.open].filter((group) => !around.has(group) && hides(group) <= MOST_HIDDEN);
    const deepest = Math.max(...closable.map((group) => tree.depthOf(group)));
    const before = [...this.open];
    for (const group of closable) if (tree.depthOf(group) === deepest) this.open.delete(group);
    if (closable.length && this.visible().size >= LEAST_CARDS) return true;
    this.reopen(before);
    return false;
  }

  close(group: number): void {
    this.open.delete(group);
  }

  /** Open exactly these groups, to restore an earlier picture. */
  reopen(groups: Iterable<number>): void {
    this.open.clear();
    for (const group of groups) this.open.add(group);
  }

  closeAll(): void {
    this.open.clear();
  }

  /** Open a group and all groups inside it, as far as they fit. */
  openInside(group: number): void {
    this.reveal(group);
    this.openAll(MOST_CARDS, () => true, [group]);
  }

  /** Open groups as far as they fit, outer groups first. */
  openAll(most = MOST_CARDS, wanted: (item: number) => boolean = () => true, from = this.tree.items(TOP)): void {
    let level = from;
    let seen = this.visible().size;
    while (level.length) {
      const next: number[] = [];
      for (const item of level) {
        if (!this.tree.isGroup(item)) continue;
        const inside = this.tree.items(item);
        if (!this.open.has(item)) {
          if (seen + inside.length - 1 > most || !wanted(item)) continue;
          seen += inside.length - 1;
          this.open.add(item);
        }
        next.push(...inside);
      }
      level = next;
    }
  }

  /** The items with a card: nodes and closed groups. */
  visible(): Set<number> {
    const found = new Set<number>();
    for (const level of this.levels()) for (const item of this.tree.items(level)) if (!this.open.has(item)) found.add(item);
    return found;
  }

  /** The open levels, inner levels first. */
  private levels(): number[] {
    const found = [TOP];
    for (let at = 0; at < found.length; at++)
      for (const item of this.tree.items(found[at] as number)) if (this.open.has(item)) found.push(item);
    return found.reverse();
  }

  /** The scene to draw; null if a later request replaced this one. */
  async scene(): Promise<Scene | null> {
    const levels = this.levels();
    const tasks = levels.map((level) => this.task(level));
    const keys = new Map<number, string>();
    for (const level of levels) {
      const inner = this.tree.items(level).filter((item) => this.open.has(item));
      keys.set(level, `${level}(${inner.map((item) => keys.get(item)).join()})`);
    }
    const placed = await this.arranger.arrange(tasks, levels.map((level) => keys.get(level) as string));
    return placed && this.compose(placed);
  }

  private task(level: number): Task {
    const slice = this.slicer.slice(level);
    return {
      level,
      boxes: slice.items.map((item) => {
        if (this.open.has(item)) return { item, width: 0, height: 0 };
        const { width, height } = this.cards.card(item);
        return { item, width, height };
      }),
      links: slice.links.map(({ from, to }) => [from, to]),
      entries: slice.entries,
      exits: slice.exits,
      header: level === TOP ? 0 : HEADER,
      padding: level === TOP ? 0 : FRAME_PADDING,
      leastWidth: level === TOP ? 0 : this.cards.title(level).width,
    };
  }

  private compose(placed: ReadonlyMap<number, Placed>): Scene {
    const scene = { cards: [], frames: [], paths: [], stubs: [], ...size(placed.get(TOP)) } as Changing<Scene>;
    const stack: [number, number, number][] = [[TOP, 0, 0]];
    for (let next = stack.pop(); next; next = stack.pop()) {
      const [level, x, y] = next;
      const found = placed.get(level);
      if (!found) continue;
      const shift = (path: readonly number[]) => path.map((value, at) => value + (at % 2 ? y : x));
      const { items, links, entries, exits } = this.slicer.slice(level);
      items.forEach((item, at) => {
        const [left, top] = found.at[at] as [number, number];
        if (this.open.has(item)) {
          const depth = this.tree.depthOf(item);
          scene.frames.push({ item, x: x + left, y: y + top, ...size(placed.get(item)), depth });
          stack.push([item, x + left, y + top]);
        } else scene.cards.push({ card: this.cards.card(item), x: x + left, y: y + top });
      });
      const cut = found.far.filter(Boolean).length > MOST_BOWS;
      const stubs = new Map<string, Stub>();
      found.paths.forEach((path, at) => {
        const link = links[at] as Link;
        const [points, far] = [shift(path), found.far[at] as boolean];
        scene.paths.push({ points, link, from: link.from, to: link.to, far, cut: far && cut });
        if (!far || !cut) return;
        for (const side of ["from", "to"] as const) {
          const key = `${side} ${link[side]}`;
          const [x, y] = (side === "from" ? points.slice(0, 2) : points.slice(-2)) as [number, number];
          if (!stubs.has(key)) stubs.set(key, { item: link[side], side, x, y, others: [] });
          stubs.get(key)?.others.push(side === "from" ? link.to : link.from);
        }
      });
      scene.stubs.push(...stubs.values());
      found.entryPaths.forEach((path, at) =>
        scene.paths.push({ points: shift(path), link: null, from: level, to: entries[at] as number, far: false, cut: false }),
      );
      found.exitPaths.forEach((path, at) =>
        scene.paths.push({ points: shift(path), link: null, from: exits[at] as number, to: level, far: false, cut: false }),
      );
    }
    scene.frames.sort((a, b) => a.depth - b.depth);
    return scene;
  }
}

type Changing<T> = { -readonly [K in keyof T]: T[K] };

function size(level: Placed | undefined): { width: number; height: number } {
  return { width: level?.width ?? 0, height: level?.height ?? 0 };
}
