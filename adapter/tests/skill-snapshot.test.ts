/** Paperclip's skills page. S8 is a row of the conformance tests: behaviour that the existing adapters' tests pin. */

import { describe, expect, it } from "vitest";
import type { PaperclipHelpers } from "../src/paperclip-helpers.ts";
import { listSkills, snapshot } from "../src/skill-snapshot.ts";
import { OPERATIONAL } from "../src/skills.ts";

const OFFERED = [
  { key: "zoo/z", runtimeName: "zed", source: "/skills/z" },
  { key: OPERATIONAL, source: "/skills/paperclip" },
  { key: "acme/a", source: "/skills/a", sourceStatus: "available" },
  { key: "acme/deleted", sourceStatus: "missing", missingDetail: "deleted from the catalogue" },
];

function page(desired: string[] | undefined, offered: unknown = [...OFFERED, null, { key: 7 }]) {
  const config = { paperclipRuntimeSkills: offered };
  const helpers: PaperclipHelpers = desired ? { desiredSkills: () => desired } : {};
  return snapshot({ adapterType: "opencode_k8s", config }, helpers);
}

function entry(key: string, ...desired: string[]) {
  return page(desired).entries.find((found) => found.key === key);
}

describe("S8: the skills page", () => {
  it.each([[[]], [null], ["x"]])("is empty without skills: %j", (offered) => {
    const empty = { supported: true, mode: "ephemeral", entries: [], desiredSkills: [], warnings: [] };
    expect(page([], offered)).toEqual({ adapterType: "opencode_k8s", ...empty });
  });

  it("shows a desired skill as configured and the others as available", () => {
    expect(entry("acme/a", "acme/a")).toMatchObject({ state: "configured", desired: true, runtimeName: "a" });
    expect(entry("zoo/z", "acme/a")).toMatchObject({ state: "available", desired: false, runtimeName: "zed" });
    expect(entry("zoo/z")).toMatchObject({ origin: "company_managed", originLabel: "Managed by Paperclip" });
  });

  it("shows Paperclip's own skill as required", () => {
    const required = { origin: "paperclip_required", originLabel: "Required by Paperclip", required: true };
    expect(entry(OPERATIONAL)).toMatchObject({ state: "configured", ...required });
  });

  it("shows a skill whose folder is missing as missing", () => {
    const detail = "deleted from the catalogue";
    expect(entry("acme/deleted", "acme/deleted")).toMatchObject({ state: "missing", desired: true, detail });
  });

  it("shows a desired skill that Paperclip does not offer as missing, with a warning", () => {
    expect(entry("lost", "lost")).toMatchObject({ state: "missing", origin: "external_unknown", runtimeName: null });
    expect(page(["lost"]).warnings).toEqual([
      'Desired skill "lost" is not available from the Paperclip skills directory.',
    ]);
  });

  it("lists each skill once, sorted by key", () => {
    const keys = page(["lost", "acme/a", "zoo/z"]).entries.map(({ key }) => key);
    expect(keys).toEqual(["acme/a", "acme/deleted", "lost", OPERATIONAL, "zoo/z"]);
  });

  it("shows the required skills as desired when Paperclip does not say which are", async () => {
    expect(page(undefined).desiredSkills).toEqual([OPERATIONAL]);
    const config = { paperclipRuntimeSkills: OFFERED };
    const found = await listSkills({ adapterType: "opencode_k8s", config });
    expect(found.desiredSkills).toEqual([OPERATIONAL]);
  });
});
