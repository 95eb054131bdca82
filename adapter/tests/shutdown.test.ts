/** A host that is asked to stop has lost its runs, long before it aborts their signals. */

import { afterEach, describe, expect, it } from "vitest";
import { abortOf } from "../src/cancel.ts";
import { shutdownSignal } from "../src/shutdown.ts";

const hosts = () => undefined;
const before = process.listeners("SIGTERM");

afterEach(() => {
  for (const listener of process.listeners("SIGTERM")) {
    if (!before.includes(listener)) process.off("SIGTERM", listener);
  }
});

/** The listeners that are not the host's. */
function added() {
  return process.listeners("SIGTERM").filter((listener) => listener !== hosts && !before.includes(listener));
}

describe("a stop of the process", () => {
  it("counts as a lost lease, and adds a listener only next to one of the host's", () => {
    process.removeAllListeners("SIGTERM");
    expect(shutdownSignal().aborted).toBe(false);
    expect(added()).toEqual([]);
    process.on("SIGTERM", hosts);
    const signal = shutdownSignal();
    expect(shutdownSignal()).toBe(signal);
    expect(added().length).toBe(1);
    added()[0]?.("SIGTERM");
    expect(abortOf(signal)).toEqual({ kind: "lease lost" });
    for (const listener of before) process.on("SIGTERM", listener);
  });
});
