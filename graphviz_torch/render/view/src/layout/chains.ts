// Replace a chain of boxes, each the only user of the box before, by one box. dagre then has
// fewer ranks, through which fewer edges pass.

import { join } from "./pieces";
import { type Area, inRanks, type Piece, port, type Ranks } from "./ranks";

interface Chain {
  /** The box that replaces the chain; its item is the item of the chain's first box. */
  readonly box: Area;
  readonly items: number[];
  readonly corners: [number, number][];
  readonly joins: number[][];
}

export function inChains(piece: Piece): Ranks {
  const chains = rows(piece).map(chain);
  const home = new Map(chains.flatMap((one) => one.items.map((item) => [item, one] as const)));
  const of = (item: number) => home.get(item) as Chain;
  const between = piece.links.filter(([from, to]) => of(from) !== of(to));
  const links = between.map(([from, to]) => [of(from).box.item, to] as const);
  const exits = piece.exits.map((item) => of(item).box.item);
  const ranks = inRanks({ boxes: chains.map(({ box }) => box), links, entries: piece.entries, exits });

  const at = new Map<number, [number, number]>();
  const paths = new Map(between.map((link, edge) => [link.join(), ranks.paths[edge] as number[]]));
  chains.forEach(({ items, corners, joins }, number) => {
    const [left, top] = ranks.at[number] as [number, number];
    items.forEach((item, place) => {
      const [x, y] = corners[place] as [number, number];
      at.set(item, [x + left, y + top]);
      if (place) paths.set(`${items[place - 1]},${item}`, (joins[place - 1] as number[]).map((value, at) => value + (at % 2 ? top : left)));
    });
  });
  return { ...ranks, at: piece.boxes.map(({ item }) => at.get(item) as [number, number]), paths: piece.links.map((link) => paths.get(link.join()) as number[]) };
}

function rows({ boxes, links, entries, exits }: Piece): Area[][] {
  const users = new Map<number, number[]>();
  const read = new Map<number, number>();
  const more = (item: number) => read.set(item, (read.get(item) ?? 0) + 1);
  for (const [from, to] of links) {
    users.set(from, [...(users.get(from) ?? []), to]);
    more(to);
  }
  entries.forEach(more);
  const areas = new Map(boxes.map((box) => [box.item, box]));
  const position = new Map(boxes.map(({ item }, at) => [item, at]));
  const leaving = new Set(exits);
  const next = (item: number): number | undefined => {
    const [user, ...others] = users.get(item) ?? [];
    if (user === undefined || others.length || leaving.has(item) || read.get(user) !== 1) return undefined;
    // Groups may form a cycle, so only a later user counts.
    return (position.get(user) as number) > (position.get(item) as number) ? user : undefined;
  };
  const later = new Set(boxes.map(({ item }) => next(item)));
  return boxes.flatMap((box) => {
    if (later.has(box.item)) return [];
    const row = [box];
    for (let item = next(box.item); item !== undefined; item = next(item)) row.push(areas.get(item) as Area);
    return [row];
  });
}

function chain(row: readonly Area[]): Chain {
  const [first, last] = [row[0] as Area, row.at(-1) as Area];
  const items = row.map(({ item }) => item);
  if (first === last) return { box: first, items, corners: [[0, 0]], joins: [] };
  const pieces = row.map((box) => ({ boxes: [box], links: [], entries: [], exits: [] }));
  const { width, height, corners, joins } = join(pieces, pieces.map(inRanks), row.map(() => false));
  const entry = (corners[0] as [number, number])[0] + port(first, "entry");
  const exit = (corners.at(-1) as [number, number])[0] + port(last, "exit");
  return { box: { item: first.item, width, height, ports: { entry, exit } }, items, corners, joins };
}
