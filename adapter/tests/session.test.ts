/** Paperclip's session codec: any spelling in, one spelling out, never an exception. */

import { describe, expect, it } from "vitest";
import { decodeSession, sessionCodec } from "../src/session.ts";

const FULL = { sessionId: "ses_1", cwd: "/work", workspaceId: "w", repoUrl: "u", repoRef: "r" };

describe("the session codec", () => {
  it.each([
    ["its own spelling", FULL, FULL],
    ["snake case", { session_id: "ses_1", workdir: "/work", workspace_id: "w", repo_url: "u", repo_ref: "r" }, FULL],
    ["OpenCode's spelling", { sessionID: " ses_1 ", folder: "/work" }, { sessionId: "ses_1", cwd: "/work" }],
    ["the bare id", { sessionId: "ses_1" }, { sessionId: "ses_1" }],
    ["the host's own keys", { ...FULL, __paperclipConfigFingerprint: "x", __paperclipConfiguredModel: "m" }, FULL],
    ["values of other kinds", { sessionId: "ses_1", cwd: 7, repoUrl: null, workspaceId: "" }, { sessionId: "ses_1" }],
  ])("reads %s", (_, raw, expected) => {
    expect(sessionCodec.deserialize(raw)).toEqual(expected);
    expect(sessionCodec.serialize(raw)).toEqual(expected);
    expect(sessionCodec.getDisplayId?.(raw)).toBe("ses_1");
  });

  it.each([
    [null],
    [undefined],
    [{}],
    [[]],
    ["ses_1"],
    [7],
    [{ sessionId: "" }],
    [{ sessionId: 7 }],
    [{ cwd: "/work" }],
  ])("has no session for %j", (raw) => {
    expect(sessionCodec.deserialize(raw)).toBeNull();
    expect(sessionCodec.serialize(raw as never)).toBeNull();
    expect(sessionCodec.getDisplayId?.(raw as never)).toBeNull();
  });

  it("survives an object that throws when it is read", () => {
    const hostile = {
      get sessionId(): string {
        throw new Error("no");
      },
    };
    expect(sessionCodec.deserialize(hostile)).toBeNull();
  });

  it("changes nothing when it reads what it wrote, and not what it was given", () => {
    const given = Object.freeze({ session_id: "ses_1", folder: "/work" });
    const once = decodeSession(given);
    expect(sessionCodec.deserialize(once)).toEqual(once);
  });
});
