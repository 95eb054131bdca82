import { describe, expect, it } from "vitest";
import { models, modelsIn } from "../src/models.ts";

describe("models", () => {
  it("are the first words with a provider, once each, in natural order", () =>
    expect(modelsIn("b/m10 x\nb/m9\r\n  a/z \nnone\n/x\nx/\nb/m9\n\n").map((model) => model.id)).toEqual([
      ...["a/z", "b/m9", "b/m10"],
    ]));
  it("are offered without OpenCode", () => expect(models.length).toBeGreaterThan(0));
});
