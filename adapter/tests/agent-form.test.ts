import { describe, expect, it } from "vitest";
import { configSchema } from "../src/config-schema.ts";
import { agentConfigurationDoc } from "../src/documentation.ts";
import { models, modelsIn } from "../src/models.ts";

describe("the configuration form", () => {
  const { fields } = configSchema();
  const keys = fields.map((field) => field.key);

  it("is a copy: a host may change it", () => {
    configSchema().fields.length = 0;
    expect(configSchema().fields).toHaveLength(fields.length);
  });

  it("is documented for agents field by field", () => {
    for (const key of keys) expect(agentConfigurationDoc).toContain(key);
  });
});

describe("models", () => {
  it("are the first words with a provider, once each, in natural order", () =>
    expect(modelsIn("b/m10 x\nb/m9\r\n  a/z \nnone\n/x\nx/\nb/m9\n\n").map((model) => model.id)).toEqual([
      ...["a/z", "b/m9", "b/m10"],
    ]));
  it("are offered without OpenCode", () => expect(models.length).toBeGreaterThan(0));
});
