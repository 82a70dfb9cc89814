// Back and forward: what was selected, open and seen before; and the page's address for it.

/** A picture to come back to. */
export interface Visit<Look> {
  readonly selected: number | null;
  readonly open: readonly number[];
  /** Where the reader looked. */
  readonly look: Look;
}

/** How an item is written behind the "#" of the page's address. */
export interface Addresses {
  write(item: number): string;
  read(address: string): number | null;
}

export class Visits<Look> {
  private readonly visits: Visit<Look>[];
  private at = 0;
  // Tells this view's entries in the browser's history from those of an earlier load of the page.
  private readonly session = Math.random().toString(36).slice(2);

  /**
   * @param addresses null where the page's address is not the view's to change.
   * @param show draws a visit again. @param find shows an item that an address names.
   */
  constructor(
    start: Visit<Look>,
    private readonly addresses: Addresses | null,
    private readonly show: (visit: Visit<Look>) => void,
    private readonly find: (item: number) => void,
  ) {
    this.visits = [start];
    if (!addresses) return;
    this.write("replaceState", location.hash);
    addEventListener("popstate", this.popped);
  }

  /** The item that the page's address names. */
  get addressed(): number | null {
    return this.addresses?.read(location.hash) ?? null;
  }

  /** Another picture is shown; `left` is the one before as it was seen last. */
  add(left: Visit<Look>, now: Visit<Look>): void {
    this.visits.splice(this.at, Number.POSITIVE_INFINITY, left, now);
    this.at += 1;
    this.write("pushState", now.selected === null ? "" : (this.addresses?.write(now.selected) ?? ""));
  }

  back(): void {
    if (this.at === 0) return;
    if (this.addresses) history.back();
    else this.go(this.at - 1);
  }

  forward(): void {
    if (this.at === this.visits.length - 1) return;
    if (this.addresses) history.forward();
    else this.go(this.at + 1);
  }

  stop(): void {
    removeEventListener("popstate", this.popped);
  }

  private go(at: number): void {
    const visit = this.visits[at];
    if (!visit) return;
    this.at = at;
    this.show(visit);
  }

  private write(how: "pushState" | "replaceState", hash: string): void {
    if (!this.addresses) return;
    history[how]({ session: this.session, at: this.at }, "", hash || location.href.replace(/#.*$/, ""));
  }

  private readonly popped = ({ state }: PopStateEvent): void => {
    const entry = state as { session: string; at: number } | null;
    if (entry?.session === this.session) return this.go(entry.at);
    // The address was typed, or is from before the page was loaded again.
    const item = this.addressed;
    if (item === null) return;
    this.write("replaceState", location.hash);
    this.find(item);
  };
}
