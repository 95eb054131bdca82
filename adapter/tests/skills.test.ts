/** Paperclip's skills page. S8 is a row of the conformance tests: behaviour that the existing adapters' tests pin. */

import { describe, expect, it } from "vitest";
import type { PaperclipHelpers } from "../src/paperclip-helpers.ts";
import { OPERATIONAL, skillsPage } from "../src/skills.ts";

const OFFERED = [
  { key: "zoo/z", runtimeName: "zed", source: "/skills/z" },
  { key: OPERATIONAL, source: "/skills/paperclip" },
  { key: "acme/required", source: "/skills/required", required: true },
];
const config = { paperclipRuntimeSkills: [...OFFERED, null, { key: 7 }] };
const agent = { adapterType: "opencode_k8s", config };

describe("S8: the skills page", () => {
  it("is made by Paperclip's own helper, of the skills that it offers and those that the agent gets", () => {
    const helpers: PaperclipHelpers = {
      resolvePaperclipDesiredSkillNames: () => ["zoo/z", "lost"],
      buildRuntimeMountedSkillSnapshot: (options) => options,
    };
    expect(skillsPage(agent, helpers)).toEqual({
      adapterType: "opencode_k8s",
      mode: "ephemeral",
      availableEntries: OFFERED,
      desiredSkills: [OPERATIONAL, "acme/required", "zoo/z", "lost"],
      configuredDetail: "Goes to the agent in each Kubernetes Job.",
    });
  });

  it("shows nothing in a Paperclip without the helper", () => {
    expect(skillsPage(agent, {})).toMatchObject({ supported: false, mode: "unsupported", entries: [] });
  });
});
