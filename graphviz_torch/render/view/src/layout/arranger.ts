// Request layouts from a worker and cache them. The worker is stopped if a later request replaces its task.

import { layout, type Placed, type Task } from "./layout";

export class Arranger {
  private worker: Worker | null = null;
  private address = "";
  private forbidden: boolean;
  private pending: { tasks: Task[]; resolve: (placed: Placed[] | null) => void } | null = null;
  private readonly arrangeHere = layout();
  private readonly known = new Map<string, Placed>();

  constructor(workers: boolean) {
    this.forbidden = !workers;
    this.start(); // the worker starts while the graph is decoded
  }

  /**
   * Lay out the levels of `tasks`, inner levels first. The key of a task in `keys` identifies everything its
   * layout depends on. Resolves to null if a later call replaces this one.
   */
  async arrange(tasks: Task[], keys: string[]): Promise<Map<number, Placed> | null> {
    this.cancel();
    const missing = new Set<number>();
    tasks.forEach((task, at) => {
      if (!this.known.has(keys[at] as string)) missing.add(task.level);
    });
    if (missing.size) {
      // The layout of a level needs the sizes of the open groups inside.
      const needed = tasks.filter((task) => missing.has(task.level));
      const given = tasks.flatMap((task, at) => (missing.has(task.level) ? [] : [this.known.get(keys[at] as string) as Placed]));
      const sized = needed.map((task) => withSizes(task, given));
      const placed = await this.run(sized);
      if (!placed) return null;
      for (const level of placed) {
        const at = tasks.findIndex((task) => task.level === level.level);
        this.known.set(keys[at] as string, level);
      }
    }
    return new Map(tasks.map((task, at) => [task.level, this.known.get(keys[at] as string) as Placed]));
  }

  stop(): void {
    this.cancel();
    this.worker?.terminate();
    this.worker = null;
    if (this.address) URL.revokeObjectURL(this.address);
    this.address = "";
  }

  private run(tasks: Task[]): Promise<Placed[] | null> {
    this.start();
    if (!this.worker) return Promise.resolve(this.arrangeHere(tasks));
    this.worker.postMessage(tasks);
    return new Promise((resolve) => {
      this.pending = { tasks, resolve };
    });
  }

  private cancel(): void {
    if (!this.pending) return;
    this.worker?.terminate();
    this.worker = null;
    this.answer(null);
  }

  private answer(placed: Placed[] | null): void {
    const { pending } = this;
    this.pending = null;
    pending?.resolve(placed);
  }

  private start(): void {
    if (this.forbidden || this.worker) return;
    const text = `const arrange = (${layout.toString()})(); onmessage = (event) => postMessage(arrange(event.data));`;
    try {
      this.address ||= URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
      this.worker = new Worker(this.address);
    } catch {
      this.forbidden = true;
      return;
    }
    this.worker.onmessage = (event: MessageEvent<Placed[]>) => this.answer(event.data);
    // A content security policy may forbid workers. The failure is only reported here; then the page computes layouts itself.
    this.worker.onerror = () => {
      this.forbidden = true;
      this.worker = null;
      if (this.pending) this.answer(this.arrangeHere(this.pending.tasks));
    };
  }
}

function withSizes(task: Task, given: readonly Placed[]): Task {
  const inner = new Map(given.map((level) => [level.level, level]));
  return { ...task, known: task.boxes.flatMap((box) => (box.width ? [] : (inner.get(box.item) ?? []))) };
}
