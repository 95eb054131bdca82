/** execute() of an agent whose folder is carried: a real Temporal, the real workflow with stand-in steps, the real services. */

import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, readFileSync } from "node:fs";
import { createServer, request as httpRequest } from "node:http";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { LEASE_LOST } from "../src/abort.ts";
import { executeWith } from "../src/execute.ts";
import { withWorkspace } from "../src/workspace/carried.ts";
import { describeRun, fakeHost, partsFor, sameAgent } from "./support/paperclip-context.ts";
import { aRequest, listening, type Request, services, until } from "./support/stack.ts";
import { Case, contents, put, type Service, startService, temporary } from "./support/workspaces.ts";

const real = services();
const service = {} as Service;
/** The transcripts' and the workspaces' service at one address, as they are. */
const both = createServer((incoming, outgoing) => {
  const base = incoming.url?.startsWith("/workspace") ? service.url : real.worker.transcripts;
  const { method, headers } = incoming;
  const passed = httpRequest(`${base}${incoming.url}`, { method, headers }, (answer) => {
    outgoing.writeHead(answer.statusCode ?? 500, answer.headers);
    answer.pipe(outgoing);
  });
  passed.on("error", () => outgoing.destroy());
  incoming.pipe(passed);
});
let url = "";

beforeAll(async () => {
  const folder = temporary();
  copyFileSync(real.worker.keyFile, join(folder, "key.json"));
  Object.assign(service, await startService(folder));
  url = `http://127.0.0.1:${await listening(both)}`;
});
afterAll(() => {
  both.closeAllConnections();
  both.close();
});

function wake(request: Request, cwd: string, transcriptsUrl = url) {
  const host = fakeHost(request, { context: { paperclipWorkspace: { cwd } } });
  const parts = partsFor(request, real, { transcriptsUrl });
  const decided = async () => {
    const { settings, ...others } = await parts();
    return { settings, ...others, limits: (await withWorkspace(host.context, settings)).limits };
  };
  return { host, result: executeWith(host.context, decided) };
}

/** The pod of a run that has begun. */
async function podOf(request: Request, cwd: string): Promise<Case> {
  const pod = new Case(service, cwd, {}, {}, request);
  await until(async () => (await pod.store().last("out")) !== undefined);
  await pod.restore();
  return pod;
}

function folderOf(text: string): string {
  const folder = temporary();
  put(folder, "a", text);
  return folder;
}

describe.concurrent("a carried folder", () => {
  it("goes out before the run, and is here with the agent's work when the run has ended", async () => {
    const folder = folderOf("1");
    const request = aRequest({ behaviour: "lines:40:50" });
    const { host, result } = wake(request, folder);
    const pod = await podOf(request, folder);
    put(pod.pod, "a", "2");
    await pod.end();
    expect(await result).toMatchObject({ exitCode: 0, errorMessage: null, errorCode: null });
    expect(await contents(folder)).toEqual({ a: "644 2" });
    const lines = host.statuses();
    const [out, back] = ["the workspace went out: 1 files, 1 bytes", "the workspace came back: 1 files, 1 bytes"];
    const at = (text: string) => lines.findIndex((line) => line.startsWith(text));
    expect([at(out) >= 0, at(out) < at(`run ${request.runId} started`), at(back) > at("session ")]).toEqual([
      true,
      true,
      true,
    ]);
    expect((await pod.store().last())?.kind).toBe("returned");
  });

  it("makes a run that succeeded a failure where it was changed on both sides, with the file and the command", async () => {
    const folder = folderOf("1");
    const request = aRequest({ behaviour: "lines:40:50" });
    const { result } = wake(request, folder);
    const pod = await podOf(request, folder);
    put(pod.pod, "a", "theirs");
    put(folder, "a", "ours");
    await pod.end();
    const ended = await result;
    expect(ended).toMatchObject({ exitCode: 1, errorCode: "workspace_not_returned", sessionId: "ses_fake" });
    expect(ended.errorMessage).toContain('"a" was changed here and by the agent');
    expect(ended.resultJson?.nextStep).toContain(`agent-runs workspace ${request.runId} --into DIR`);
    expect(ended.summary).toContain("workspace\\_not\\_returned".replaceAll("\\", ""));
    expect(readFileSync(join(folder, `a.agent-${request.runId.slice(0, 8)}`), "utf8")).toBe("theirs");
  });

  it("comes back from a cancelled run", async () => {
    const folder = folderOf("1");
    const request = aRequest({ behaviour: "works" });
    const { host, result } = wake(request, folder);
    const pod = await podOf(request, folder);
    put(pod.pod, "a", "2");
    await pod.end("checkpoint");
    await until(() => host.agentLines().length > 0);
    host.abort("Cancelled by operator");
    expect(await result).toMatchObject({
      errorCode: "cancelled",
      resultJson: { executionCancellation: { state: "acknowledged" } },
    });
    expect(await contents(folder)).toEqual({ a: "644 2" });
  });

  it("comes back to the wake that joins the run after Paperclip has lost it", async () => {
    const folder = folderOf("1");
    const request = aRequest({ behaviour: "lines:40:50" });
    const first = wake(request, folder);
    const pod = await podOf(request, folder);
    await until(() => first.host.agentLines().length > 0);
    first.host.abort(LEASE_LOST);
    expect((await first.result).errorCode).toBe("controller_lease_lost");
    expect(await contents(folder)).toEqual({ a: "644 1" });
    put(pod.pod, "a", "2");
    await pod.end();
    const second = wake(sameAgent(request), folder);
    expect(await second.result).toMatchObject({ exitCode: 0, resultJson: { joinedRunId: request.runId } });
    expect(second.host.statuses("the workspace went out")).toEqual([]);
    expect(await contents(folder)).toEqual({ a: "644 2" });
  });

  it("goes out as it is once the agent is free", async () => {
    const folder = folderOf("1");
    const request = aRequest({ behaviour: "works" });
    const first = wake(request, folder);
    const pod = await podOf(request, folder);
    await until(() => first.host.agentLines().length > 0);
    const other = sameAgent(request, {
      context: { taskId: "task-2" },
      config: aRequest({ behaviour: "lines:2" }).config,
    });
    const second = wake(other, folder);
    await until(() => second.host.statuses("the agent is held").length > 0);
    expect(second.host.statuses("the workspace went out")).toEqual([]);
    put(pod.pod, "a", "2");
    await pod.end("checkpoint");
    first.host.abort("Cancelled");
    await first.result;
    expect(await second.result).toMatchObject({ exitCode: 0 });
    expect(second.host.statuses("the workspace went out")).toHaveLength(1);
    expect(await contents((await podOf(other, folder)).pod)).toEqual({ a: "644 2" });
  });

  it("that cannot be carried is refused before anything is created", async () => {
    const folder = folderOf("1");
    execFileSync("mkfifo", [join(folder, "pipe")]);
    const request = aRequest();
    const ended = await wake(request, folder).result;
    expect(ended).toMatchObject({ errorCode: "invalid_request", executionRecovery: { kind: "bootstrap" } });
    expect(ended.errorMessage).toContain('"workspace/pipe"');
    await expect(describeRun(request, real)).rejects.toThrow();
  });

  it("without a store is refused if the configuration asks for it, and else is not carried", async () => {
    const folder = folderOf("1");
    const request = aRequest();
    const asking = { ...request, config: { ...request.config, workspace: "carried" } };
    const ended = await wake(asking, folder, real.worker.transcripts).result;
    expect(ended.errorMessage).toMatch(/^config\.workspace .* AGENT_RUNS_WORKSPACE_STORE$/);
    const { host, result } = wake(aRequest(), folder, real.worker.transcripts);
    expect(await result).toMatchObject({ exitCode: 0 });
    expect(host.statuses("workspace")).toEqual([]);
    expect(existsSync(folder)).toBe(true);
  });
});
