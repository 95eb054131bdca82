/** Waits that can be aborted. Every timer here ends with its wait, and none keeps the host's process alive. */

import { setMaxListeners } from "node:events";
import { setTimeout } from "node:timers/promises";

/** A wait or a call ended because its signal was aborted; `reason` is the signal's. */
export class Aborted extends Error {
  readonly reason: unknown;
  constructor(reason?: unknown) {
    super("aborted");
    this.reason = reason;
  }
}

/** Hears when a service does not answer, and when it answers again. */
export interface OutageListener {
  failed(message: string): void;
  recovered(): void;
}

export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new Aborted(signal.reason);
}

/** Lets the host's other work have the event loop. Unlike an immediate it keeps no process alive. */
export function yieldToEventLoop(): Promise<void> {
  return sleep(0);
}

/** Waits so many milliseconds. Rejects with `Aborted` when `signal` is aborted. */
export async function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  await setTimeout(milliseconds, undefined, { signal, ref: false }).catch(() => throwIfAborted(signal));
}

/**
 * Calls `work` with a signal of its own, which is aborted with any of `signals`.
 *
 * Instead of `AbortSignal.any`, because a listener of a signal that lives for hours must be removed after the call.
 */
export async function withLinkedSignal<T>(
  signals: readonly (AbortSignal | undefined)[],
  work: (controller: AbortController) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  setMaxListeners(0, controller.signal); // a call of many rounds adds a listener in each of them
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

/** The pauses between repeated calls: `first`, each then twice as long, up to `longest` milliseconds, ±20 %. */
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
