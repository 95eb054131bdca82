import { expect, test } from "vitest";
import { graceOf } from "../src/cancel.ts";

test.each([
  [{}, 60],
  [{ graceSec: 0 }, 0],
  [{ graceSec: 90 }, 90],
  [{ graceSec: 2_592_000 }, 2_592_000],
  [{ graceSec: 2_592_001 }, 60],
  [{ graceSec: -1 }, 60],
  [{ graceSec: Number.NaN }, 60],
  [{ graceSec: "30" }, 60],
  [null, 60],
])("the grace of %j is %d s", (config, seconds) => {
  expect(graceOf(config)).toBe(seconds);
});
