// History of selection, open groups and camera, for the buttons back and forward and for the page address.

/** A state of the view to return to. */
export interface Visit<Look> {
  readonly selected: number | null;
  readonly open: readonly number[];
  /** Camera position. */
  readonly look: Look;
}

/** Converts items to and from the fragment of the page address. */
export interface Addresses {
  write(item: number): string;
  read(address: string): number | null;
}

export class Visits<Look> {
  private readonly visits: Visit<Look>[];
  private at = 0;
  // Distinguishes this view's entries in the browser history from entries of earlier page loads.
  private readonly session = Math.random().toString(36).slice(2);

  /**
   * @param addresses null if the view may not change the page address.
   * @param show restores a visit. @param find shows the item of an address.
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

  /** The item in the page address. */
  get addressed(): number | null {
    return this.addresses?.read(location.hash) ?? null;
  }

  /** Add a visit; `left` is the previous visit in its final state. */
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
    // The entry has no visit of this session: the address was typed, or the page was reloaded since.
    const item = this.addressed;
    if (item === null) return;
    this.write("replaceState", location.hash);
    this.find(item);
  };
}
