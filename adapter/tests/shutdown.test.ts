/** A host that is told to stop has lost its runs, long before it says so. */

import { afterEach, describe, expect, it } from "vitest";
import { abortOf } from "../src/cancel.ts";
import { letGo, shutdown } from "../src/shutdown.ts";

const hosts = () => undefined;
const before = process.listeners("SIGTERM");

afterEach(() => {
  for (const listener of process.listeners("SIGTERM")) {
    if (!before.includes(listener)) process.off("SIGTERM", listener);
  }
});

/** What somebody else than the host has added. */
function added() {
  return process.listeners("SIGTERM").filter((listener) => listener !== hosts && !before.includes(listener));
}

describe("a stop of the process", () => {
  it("is heard beside the host, counts as a lost lease, and would not keep a process alive that has no handler", () => {
    process.removeAllListeners("SIGTERM");
    expect(shutdown().aborted).toBe(false);
    expect(added()).toEqual([]);
    process.on("SIGTERM", hosts);
    const signal = shutdown();
    expect(shutdown()).toBe(signal);
    expect(added().length).toBe(1);
    added()[0]?.("SIGTERM");
    expect(abortOf(signal)).toEqual({ kind: "lease lost" });
    for (const listener of before) process.on("SIGTERM", listener);
  });
});

describe("what is to be returned then", () => {
  it("waits for the host to let go, and not for ever", async () => {
    const host = new AbortController();
    const waiting = letGo(host.signal);
    host.abort();
    await waiting;
    await letGo(host.signal);
    await letGo(new AbortController().signal, 1);
    await letGo(undefined, 1);
  });
});
