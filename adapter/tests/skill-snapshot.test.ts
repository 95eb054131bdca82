/** Paperclip's skills page. S8 is a row of the conformance tests: behaviour that the existing adapters' tests pin. */

import { describe, expect, it } from "vitest";
import type { RuntimeSkill } from "../src/contracts.ts";
import { listSkills, snapshot } from "../src/skill-snapshot.ts";
import { OPERATIONAL } from "../src/skills.ts";

const OFFERED: RuntimeSkill[] = ["zoo/z", OPERATIONAL, "acme/a"].map((key) => ({
  key,
  runtimeName: key.slice(key.lastIndexOf("/") + 1),
  source: `/skills/${key}`,
}));

function page(...desired: string[]) {
  return snapshot(OFFERED, { desiredSkills: desired.map((key) => ({ key })) });
}

function entry(key: string, ...desired: string[]) {
  return page(...desired).entries.find((found) => found.key === key);
}

describe("S8: the skills page", () => {
  it("is empty without skills", () => {
    expect(snapshot([], {})).toMatchObject({ entries: [], desiredSkills: [], warnings: [] });
    expect(snapshot([], {})).toMatchObject({ supported: true, mode: "ephemeral" });
  });

  it("shows a desired skill as configured and the others as available", () => {
    expect(entry("acme/a", "acme/a")).toMatchObject({ state: "configured", desired: true });
    expect(entry("zoo/z", "acme/a")).toMatchObject({ state: "available", desired: false, origin: "company_managed" });
  });

  it("shows Paperclip's own skill as required", () => {
    expect(entry(OPERATIONAL)).toMatchObject({
      state: "configured",
      origin: "paperclip_required",
      originLabel: "Required by Paperclip",
    });
  });

  it("shows a desired skill that Paperclip does not offer as missing, with a warning", () => {
    expect(entry("lost", "lost")).toMatchObject({ state: "missing", origin: "external_unknown", runtimeName: null });
    expect(page("lost").warnings).toEqual([
      'Desired skill "lost" is not available from the Paperclip skills directory.',
    ]);
  });

  it("lists each skill once, sorted by key", () => {
    const keys = page("lost", "a", "z", "paperclip").entries.map(({ key }) => key);
    expect(keys).toEqual(["acme/a", "lost", OPERATIONAL, "zoo/z"]);
  });
});

describe("the skills of an agent's configuration", () => {
  const offered = [
    { key: OPERATIONAL, runtimeName: "paperclip", source: "/skills/paperclip" },
    { key: "acme/docs/writing", source: "/skills/writing", sourceStatus: "available" },
    { key: "acme/docs/deleted", sourceStatus: "missing", missingDetail: "deleted from the catalogue" },
  ];
  const context = (desiredSkills: unknown) => ({
    ...{ agentId: "a", companyId: "c", adapterType: "opencode_k8s" },
    config: { paperclipRuntimeSkills: [...offered, null, { key: 7 }], paperclipSkillSync: { desiredSkills } },
  });

  it("are Paperclip's own, and what the agent asks for by any of its names", async () => {
    const found = await listSkills(context(["Writing", { key: "acme/docs/deleted" }, "no/such"]));
    expect(found.entries.map(({ key, state, desired, origin }) => [key, state, desired, origin])).toEqual([
      ["acme/docs/deleted", "missing", true, "company_managed"],
      ["acme/docs/writing", "configured", true, "company_managed"],
      ["no/such", "missing", true, "external_unknown"],
      [OPERATIONAL, "configured", true, "paperclip_required"],
    ]);
    expect(found.warnings).toEqual(['Desired skill "no/such" is not available from the Paperclip skills directory.']);
  });

  it.each([undefined, null, "x", [null, 3]])("are only the required ones when it asks for %j", async (desired) => {
    expect((await listSkills(context(desired))).desiredSkills).toEqual([OPERATIONAL]);
  });
});
