import { expect, test } from "vitest";
import { CANCEL_ANSWER_MS, confirmationTimeout } from "../src/cancel.ts";

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
