/** Waits that can be given up. Every timer here ends with its wait, and none keeps the host's process alive. */

import { setMaxListeners } from "node:events";

/** A wait or a call was given up because its signal was aborted; `reason` is the signal's. */
export class GivenUp extends Error {
  readonly reason: unknown;
  constructor(reason?: unknown) {
    super("given up");
    this.reason = reason;
  }
}

/** What a part that keeps trying tells of trouble, and of its end. */
export interface Outage {
  failed(what: string): void;
  recovered(): void;
}

/** Lets the host's other work have the event loop. Unlike an immediate it keeps no process alive. */
export function turn(): Promise<void> {
  return sleep(0);
}

/** Waits so many milliseconds. Rejects with `GivenUp` when `signal` is aborted. */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(new GivenUp(signal.reason));
    const over = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", over);
      if (signal?.aborted) reject(new GivenUp(signal.reason));
      else resolve();
    };
    const timer = setTimeout(over, milliseconds);
    timer.unref();
    signal?.addEventListener("abort", over);
  });
}

/** Resolves when `signal` is aborted; `release` forgets it. */
export function aborted(signal: AbortSignal): { promise: Promise<void>; release(): void } {
  let notice = () => {};
  const promise = new Promise<void>((resolve) => {
    notice = () => resolve();
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", notice, { once: true });
  });
  return { promise, release: () => signal.removeEventListener("abort", notice) };
}

/**
 * Calls `work` with a signal of its own, aborted with any of `signals`.
 *
 * Instead of `AbortSignal.any`, because what listens to a signal that lives for hours must be taken off it again.
 */
export async function linked<T>(
  signals: readonly (AbortSignal | undefined)[],
  work: (controller: AbortController) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  setMaxListeners(0, controller.signal); // a call of many rounds listens anew in each of them
  const present = signals.filter((signal) => signal !== undefined);
  const pass = () => controller.abort(present.find((signal) => signal.aborted)?.reason);
  for (const signal of present) signal.addEventListener("abort", pass);
  if (present.some((signal) => signal.aborted)) pass();
  try {
    return await work(controller);
  } finally {
    for (const signal of present) signal.removeEventListener("abort", pass);
  }
}

/** The pauses between tries: `first`, then twice as long each, up to `longest` milliseconds, ±20 %. */
export class BackOff {
  #next: number;
  readonly #first: number;
  readonly #longest: number;

  constructor(first = 250, longest = 5000) {
    this.#first = this.#next = first;
    this.#longest = longest;
  }

  async wait(signal?: AbortSignal): Promise<void> {
    const pause = this.#next * (0.8 + Math.random() * 0.4);
    this.#next = Math.min(this.#next * 2, this.#longest);
    await sleep(pause, signal);
  }

  reset(): void {
    this.#next = this.#first;
  }
}
