/**
 * The start of a run: a few readable ids and one sealed text, which holds Paperclip's execution context and what only
 * Paperclip's process can render or read. The worker validates the context; here nothing but the ids is checked.
 */

import type { Binding, RunStart, SealedJoin, SealedMessage, SealedRun } from "../generated/contracts.ts";
import { type Wake, workflowIdOf } from "./attach.ts";
import { InvalidRequest } from "./errors.ts";
import { hostTexts } from "./host-texts.ts";
import { namesIn } from "./names.ts";
import { type AdapterExecutionContext, objectOf } from "./paperclip.ts";
import { PaperclipApi } from "./paperclip-api.ts";
import type { PaperclipHelpers } from "./paperclip-helpers.ts";
import type { Sealer } from "./sealing.ts";
import type { Settings } from "./settings.ts";

/** What is sealed of an execution context, which also has functions, a tracer and signals. */
const SEALED_KEYS = ["runId", "agent", "runtime", "config", "context", "authToken", "runtimeTools"] as const;
/** Paperclip's ids: safe in a query. */
const IDENTIFIER = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$/;
const IDENTIFIER_REMEDY =
  "must start with a letter or digit and hold only letters, digits, '_', '.', ':', '-' (128 at most)";

/** A wake that can be attached, and what Paperclip may show of it. */
export type Prepared = Readonly<Awaited<ReturnType<typeof prepare>>>;

type Ids = Omit<RunStart, "sealed">;

/**
 * Seals the execution context. What cannot be rendered or read gives a note.
 *
 * @param environment of Paperclip's process; only Paperclip's address and home are read.
 * @throws InvalidRequest: an id is missing or is none, or the context is too large or no JSON.
 */
export async function prepare(
  ctx: AdapterExecutionContext,
  settings: Settings,
  sealer: Sealer,
  helpers: PaperclipHelpers,
  environment: NodeJS.ProcessEnv = process.env,
) {
  const ids = idsOf(ctx);
  const texts = await hostTexts(ctx, settings, helpers, environment);
  const { agent, notes } = await withSpend(ctx);
  const host = { ...texts, notes: [...texts.notes, ...notes] };
  const context = { ...Object.fromEntries(SEALED_KEYS.map((key) => [key, ctx[key]])), agent };
  const content: SealedRun = { binding: bindingOf("run", ids), context, host };
  const resumes = Object.keys(objectOf(ctx.runtime?.sessionParams)).length > 0;
  const wake: Wake = {
    start: { ...ids, sealed: await sealer.seal(content) },
    names: settings.names ? namesIn(ctx) : {},
    taskKey: firstText(ctx.runtime?.taskKey),
    sealJoin: () => sealJoin(ctx, ids, sealer),
  };
  return {
    wake,
    /** Seals the answer to a question of the agent, which the run of this id has. */
    sealAnswer: (runId: string, messageId: string, question: string, answers: string[][]) => {
      const binding = bindingOf("message", { ...ids, runId, task: messageId });
      const content: SealedMessage = { binding, question, answers };
      return sealer.seal(content);
    },
    /** For people: what could not be rendered or read. */
    notes: host.notes,
    /** The wake as Paperclip renders it. */
    wakeText: (resumes ? host.wakePrompt.resumed : host.wakePrompt.fresh) ?? "",
  };
}

/**
 * The agent with what it has spent this month, if it has a budget. A run gets the agent as Paperclip's database has it, which
 * keeps the spend of an earlier month until the agent's first cost of this one. Source: Paperclip 2026.916.1, `costs.js`.
 */
async function withSpend({ agent, authToken }: AdapterExecutionContext): Promise<{ agent: object; notes: string[] }> {
  if (!(Number(objectOf(agent).budgetMonthlyCents) > 0)) return { agent, notes: [] };
  const { spentMonthlyCents } = (await new PaperclipApi(authToken).request("/agents/me")).body;
  if (typeof spentMonthlyCents === "number") return { agent: { ...agent, spentMonthlyCents }, notes: [] };
  const note = "Paperclip did not say what the agent has spent: the agent's monthly budget does not cap this run";
  return { agent: { ...agent, spentMonthlyCents: undefined }, notes: [note] };
}

/** The wake's own tokens, for an open run that it joins; undefined when it has none. */
async function sealJoin(ctx: AdapterExecutionContext, ids: Ids, sealer: Sealer): Promise<string | undefined> {
  if (!ctx.authToken) return undefined;
  const { authToken, runtimeTools } = ctx;
  const content: SealedJoin = { binding: bindingOf("join", ids), authToken, toolsToken: runtimeTools?.bearerToken };
  return await sealer.seal(content);
}

function idsOf({ runId, agent, context, runtime }: AdapterExecutionContext): Ids {
  const fields = { runId, "agent.id": agent?.id, "agent.companyId": agent?.companyId };
  const wrong = Object.entries(fields).filter(([, id]) => typeof id !== "string" || !IDENTIFIER.test(id));
  if (wrong.length > 0) throw new InvalidRequest(wrong.map(([field]) => `${field} ${IDENTIFIER_REMEDY}`).join("; "));
  const task = firstText(context?.taskId, context?.issueId, runtime?.taskKey) ?? null;
  return { runId, agentId: agent.id, companyId: agent.companyId, task };
}

function bindingOf(purpose: Binding["purpose"], { runId, agentId, companyId, task }: Ids): Binding {
  return { purpose, workflowId: workflowIdOf(agentId), companyId, runId, task };
}

/** The first of the values that is text and not blank. */
function firstText(...values: unknown[]): string | undefined {
  return values.find((value): value is string => typeof value === "string" && value.trim() !== "");
}
