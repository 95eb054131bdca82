import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { configSchema } from "../src/config-schema.ts";
import { agentConfigurationDoc } from "../src/documentation.ts";
import { models, modelsIn } from "../src/models.ts";

describe("the configuration form", () => {
  const { fields } = configSchema();
  const keys = fields.map((field) => field.key);

  it("names every field once, with a hint", () => {
    expect(new Set(keys).size).toBe(keys.length);
    expect(fields.filter((field) => !field.hint || !field.label)).toEqual([]);
  });

  it("has no fields that Paperclip has itself", () => {
    const platform = ["model", "promptTemplate", "env", "extraArgs", "timeoutSec", "graceSec", "instructionsFilePath"];
    expect(keys.filter((key) => platform.includes(key))).toEqual([]);
  });

  it("defaults to a choice that it offers", () => {
    const selects = fields.filter((field) => field.type === "select");
    expect(selects.length).toBeGreaterThan(0);
    for (const { options, default: chosen } of selects) expect(options?.map((each) => each.value)).toContain(chosen);
  });

  it("has the defaults of the contract", () => {
    const schema = JSON.parse(readFileSync(new URL("../../agent_runs/contracts/schema.json", import.meta.url), "utf8"));
    const contract: { [key: string]: { default?: unknown } } = schema.$defs.RunConfig.properties;
    const shared = fields.filter((field) => field.default !== undefined && field.key in contract);
    expect(shared.length).toBeGreaterThan(8);
    expect(shared.map(({ key, default: value }) => [key, value])).toEqual(
      shared.map(({ key }) => [key, contract[key]?.default]),
    );
  });

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
