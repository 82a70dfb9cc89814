// The slider that plays backward in execution order.

import { button, html } from "../dom";
import { say } from "../language";
import type { Playback } from "./playback";

const SECONDS = 12; // maximum duration of the playback, in seconds
const PACE = 4; // maximum steps per second

export class Player {
  readonly element: HTMLElement;
  private readonly slider: HTMLInputElement;
  private readonly said = html("output", {});
  private readonly start: HTMLButtonElement;
  private timer = 0;

  constructor(
    private readonly playback: Playback,
    private readonly caption: (node: number) => string,
    private readonly changed: () => void,
  ) {
    this.slider = html("input", { type: "range", min: 0, max: playback.steps, value: playback.steps, "aria-label": say("Step of backward") });
    this.slider.addEventListener("input", () => {
      this.stop();
      this.set(Number(this.slider.value));
    });
    this.start = button("▶", say("Play backward (p)"), () => this.toggle());
    this.element = html("div", { class: "player" }, this.start, this.slider, this.said);
    this.draw();
  }

  toggle(): void {
    if (this.timer) return this.stop();
    const { steps } = this.playback;
    const pace = Math.max(PACE, steps / SECONDS);
    const from = this.playback.step === null || this.playback.step >= steps ? 0 : this.playback.step;
    const began = performance.now();
    const tick = (now: number): void => {
      // The first frame may have started before the click, so the time can be negative.
      const step = Math.min(steps, from + Math.floor((Math.max(0, now - began) / 1000) * pace));
      if (step !== this.playback.step) this.set(step);
      if (step < steps) this.timer = requestAnimationFrame(tick);
      else this.stop();
    };
    this.set(from);
    this.timer = requestAnimationFrame(tick);
    this.draw();
  }

  move(by: number): void {
    this.stop();
    const at = this.playback.step ?? (by > 0 ? 0 : this.playback.steps);
    this.set(Math.max(0, Math.min(this.playback.steps, at + by)));
  }

  /** End the playback, and show the whole picture again. */
  leave(): void {
    this.stop();
    this.set(null);
  }

  stop(): void {
    cancelAnimationFrame(this.timer);
    this.timer = 0;
    this.draw();
  }

  private set(step: number | null): void {
    this.playback.step = step;
    this.draw();
    this.changed();
  }

  private draw(): void {
    const { playback } = this;
    this.start.textContent = this.timer ? "❚❚" : "▶";
    this.slider.value = String(playback.step ?? playback.steps);
    const { current } = playback;
    const steps = playback.steps.toLocaleString("en");
    const whole = say(playback.recorded ? "Backward: {} steps" : "Not run yet: one possible order, {} steps", steps);
    const now = say("{} of {}", playback.step ?? 0, steps) + (current === null ? "" : `: ${this.caption(current)}`);
    this.said.textContent = playback.step === null ? whole : now;
  }
}
