/** What an abort means: a cancel has time to be confirmed, and a host that is asked to stop has lost its runs. */

import { afterEach, expect, test } from "vitest";
import { abortOf, CANCEL_ANSWER_MS, confirmationTimeout, shutdownSignal } from "../src/abort.ts";

test.each([
  [{}, 60],
  [{ graceSec: 0 }, 0],
  [{ graceSec: 90 }, 90],
  [{ graceSec: -1 }, 60],
  [{ graceSec: Number.NaN }, 60],
  [{ graceSec: "30" }, 60],
  [null, 60],
])("a worker has the grace of %j, %d s, to confirm a stop", (config, seconds) => {
  expect(confirmationTimeout(config)).toBe(CANCEL_ANSWER_MS + (seconds + 120) * 1000);
});

test("a timer of Node's can wait for the longest grace", () => {
  expect(confirmationTimeout({ graceSec: 2_592_000 })).toBe(2 ** 31 - 1);
});

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

test("a stop of the process counts as a lost lease, and adds a listener only next to one of the host's", () => {
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
