import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { configSchema } from "../src/config-schema.ts";
import { agentConfigurationDoc } from "../src/documentation.ts";
import { models, modelsIn } from "../src/models.ts";
import { listSkills } from "../src/skill-snapshot.ts";

describe("the configuration form", () => {
  const { fields } = configSchema();
  const keys = fields.map((field) => field.key);

  it("names every field once, with a hint", () => {
    expect(new Set(keys).size).toBe(keys.length);
    expect(fields.filter((field) => !field.hint || !field.label)).toEqual([]);
  });

  it("leaves to Paperclip what Paperclip asks for itself", () => {
    const platform = ["model", "promptTemplate", "env", "extraArgs", "timeoutSec", "graceSec", "instructionsFilePath"];
    expect(keys.filter((key) => platform.includes(key))).toEqual([]);
  });

  it("defaults to a choice that it offers", () => {
    const selects = fields.filter((field) => field.type === "select");
    expect(selects.length).toBeGreaterThan(0);
    for (const { options, default: chosen } of selects) expect(options?.map((each) => each.value)).toContain(chosen);
  });

  it("offers what a run without a setting does", () => {
    const schema = JSON.parse(readFileSync(new URL("../../contracts/schema.json", import.meta.url), "utf8"));
    const contract: { [key: string]: { default?: unknown } } = schema.$defs.RunConfig.properties;
    const shared = fields.filter((field) => field.default !== undefined && field.key in contract);
    expect(shared.length).toBeGreaterThan(8);
    expect(shared.map(({ key, default: value }) => [key, value])).toEqual(
      shared.map(({ key }) => [key, contract[key]?.default]),
    );
  });

  it("is a copy: a host that changes it changes nothing here", () => {
    configSchema().fields.length = 0;
    expect(configSchema().fields).toHaveLength(fields.length);
  });

  it("is told to agents field by field", () => {
    for (const key of keys) expect(agentConfigurationDoc).toContain(key);
  });
});

describe("models", () => {
  it("are the first words with a provider, once each, in a natural order", () =>
    expect(modelsIn("b/m10 x\nb/m9\r\n  a/z \nnone\n/x\nx/\nb/m9\n\n").map((model) => model.id)).toEqual([
      ...["a/z", "b/m9", "b/m10"],
    ]));
  it("are there before anybody has asked OpenCode", () => expect(models.length).toBeGreaterThan(0));
});

describe("skills", () => {
  const offered = [
    { key: "paperclipai/paperclip/paperclip", runtimeName: "paperclip", source: "/skills/paperclip" },
    { key: "acme/docs/writing", source: "/skills/writing", sourceStatus: "available" },
    { key: "acme/docs/gone", sourceStatus: "missing", missingDetail: "deleted from the catalogue" },
  ];
  const context = (desiredSkills: unknown) => ({
    ...{ agentId: "a", companyId: "c", adapterType: "opencode_k8s" },
    config: { paperclipRuntimeSkills: [...offered, null, { key: 7 }], paperclipSkillSync: { desiredSkills } },
  });

  it("are Paperclip's own always, and what the agent wants by any of its names", async () => {
    const found = await listSkills(context(["Writing", { key: "acme/docs/gone" }, "no/such"]));
    expect(found.entries.map(({ key, state, desired, origin }) => [key, state, desired, origin])).toEqual([
      ["acme/docs/gone", "missing", true, "company_managed"],
      ["acme/docs/writing", "configured", true, "company_managed"],
      ["no/such", "missing", true, "external_unknown"],
      ["paperclipai/paperclip/paperclip", "configured", true, "paperclip_required"],
    ]);
    expect(found.warnings).toEqual(['Desired skill "no/such" is not available from the Paperclip skills directory.']);
  });

  it.each([undefined, null, "x", [null, 3]])("are only the required ones when the wish is %j", async (wish) => {
    expect((await listSkills(context(wish))).desiredSkills).toEqual(["paperclipai/paperclip/paperclip"]);
  });
});
