/**
 * Puts what the agent asks on its task, as Paperclip's own interaction, and brings the answer to the run.
 *
 * The run has the question and takes the first answer, wherever it comes from. Each question makes one interaction, known
 * by its idempotency key, and each answer is one Update, known by the interaction: so both are the same after a restart
 * of Paperclip. An interaction whose question is over is withdrawn. Only people may resolve it: the agent has the token
 * with which it is made, and can make others, so what an interaction asks is compared. Paperclip ends an agent's interaction
 * when the agent makes another one, so one question is on the task at a time. Source: Paperclip 2026.916.1, read and observed.
 */

import type { Answer, Delivery, Question } from "../generated/contracts.ts";
import type { Ticket } from "./attach.ts";
import type { RunLog } from "./log.ts";
import { executeUpdate } from "./outcome.ts";
import { type AdapterExecutionContext, type JsonObject, objectOf } from "./paperclip.ts";
import { PaperclipApi } from "./paperclip-api.ts";
import type { Prepared } from "./request.ts";
import { type CallOptions, type Run, serverMessage } from "./temporal.ts";

const QUESTIONS = "questions";
const ANSWER = "answer";
const REJECT = "reject";
const OWN_WORDS = "own-words";
const LABEL_LIMIT = 200;
const PROMPT_LIMIT = 2000;
const WITHDRAWN = "The agent no longer waits for this answer.";

/** What one run asks on its task. No method rejects. */
export class Questions {
  readonly #run: Run;
  readonly #runId: string;
  readonly #seal: Prepared["sealAnswer"];
  readonly #log: RunLog;
  readonly #api: PaperclipApi;
  readonly #path: string | undefined;
  readonly #options: CallOptions;
  /** Questions that were put on the task, by id: whether they can be answered there. */
  readonly #shown = new Map<string, boolean>();
  readonly #given = new Set<string>();

  constructor(
    run: Run,
    { runId }: Ticket,
    seal: Prepared["sealAnswer"],
    { context, authToken }: AdapterExecutionContext,
    log: RunLog,
    options: CallOptions,
  ) {
    this.#run = run;
    this.#runId = runId;
    this.#seal = seal;
    this.#log = log;
    this.#api = new PaperclipApi(authToken);
    const { issueId } = objectOf(context);
    this.#path = typeof issueId === "string" ? `/issues/${encodeURIComponent(issueId)}/interactions` : undefined;
    this.#options = options;
  }

  /** Puts on the task what the run asks now, takes answers from there, and withdraws what is over. */
  async tend(phase: string | undefined): Promise<void> {
    if (this.#path === undefined || (phase !== "asking" && this.#shown.size === 0)) return;
    const asked = await this.#run.client
      .callOnce(() => this.#run.query<Question[]>(QUESTIONS), this.#options)
      .catch(() => undefined); // no worker answers now
    if (asked === undefined) return;
    for (const question of asked) if (this.#shown.get(question.id) ?? (await this.#show(question))) break;
    await this.#settle(asked);
  }

  /** Withdraws what the run has left on the task. */
  async close(): Promise<void> {
    if (this.#path !== undefined) await this.#settle([]);
  }

  /** Whether no other question can be put on the task now. */
  async #show(question: Question): Promise<boolean> {
    const { status, body } = await this.#api.request(
      `${this.#path}`,
      interactionOf(question, this.#keyOf(question.id)),
    );
    if (status === 0 || status >= 500) return true; // the next time
    // a run that joins this one later makes no interaction for what an earlier one has put there
    const isThere =
      status < 300 || (status === 409 && (await this.#interactions(question)).some((each) => isOf(each, question)));
    this.#shown.set(question.id, isThere);
    const where = isThere ? "on the task" : `on the run's page: the task does not take it (HTTP ${status})`;
    const title = question.fields.map(({ text }) => text).join("; ");
    if (!isThere || body.status === "pending") await this.#log.status(`the agent asks: ${title}; answer ${where}`);
    return isThere;
  }

  /** Brings the run the answers to what is still asked. */
  async #settle(asked: Question[]): Promise<void> {
    for (const interaction of await this.#interactions()) {
      const question = asked.find(({ id }) => interaction.idempotencyKey === this.#keyOf(id));
      const isPending = interaction.status === "pending";
      if (question === undefined && isPending) await this.#withdraw(interaction);
      if (question !== undefined && !isPending) void this.#give(question, interaction);
    }
    const open = new Set(asked.map(({ id }) => id));
    for (const id of this.#shown.keys()) if (!open.has(id)) this.#shown.delete(id);
  }

  /** Those on the task with our keys, of one question or of all. */
  async #interactions(question?: Question): Promise<JsonObject[]> {
    const { body } = await this.#api.request(`${this.#path}`);
    const isOurs = (key: string) => (question ? key === this.#keyOf(question.id) : key.startsWith(this.#keyOf("")));
    const listed = Array.isArray(body.list) ? body.list.map(objectOf) : [];
    return listed.filter(({ idempotencyKey }) => isOurs(`${idempotencyKey}`));
  }

  async #withdraw({ id }: JsonObject): Promise<void> {
    await this.#api.request(`${this.#path}/${encodeURIComponent(`${id}`)}/withdraw`, { reason: WITHDRAWN });
  }

  async #give(question: Question, interaction: JsonObject): Promise<void> {
    const messageId = `${interaction.id}`;
    if (interaction.resolvedByAgentId) this.#shown.set(question.id, false);
    if (this.#given.has(messageId) || interaction.resolvedByAgentId || !isOf(interaction, question)) return;
    this.#given.add(messageId);
    const answers = answersOf(question, objectOf(interaction.result));
    const by = interaction.resolvedByUserId ? `${interaction.resolvedByUserId} in Paperclip` : "Paperclip";
    try {
      const sealed = answers.length > 0 ? await this.#seal(this.#runId, messageId, question.id, answers) : null;
      const answer: Answer = { messageId, runId: this.#runId, questionId: question.id, by, sealed };
      await executeUpdate<Delivery>(this.#run, ANSWER, [answer], { ...this.#options, id: `${ANSWER}:${messageId}` });
      await this.#log.status(`the agent has the answer of ${by}`);
    } catch (error) {
      if (!this.#options.signal?.aborted) await this.#log.status(`an answer was not used: ${serverMessage(error)}`);
    }
  }

  #keyOf(question: string): string {
    return `agent-runs:${this.#runId}:${question}`;
  }
}

/** The interaction of a question, as Paperclip takes it: answered by people only, and without a wake of the agent. */
export function interactionOf(question: Question, idempotencyKey: string) {
  const isPermission = question.kind === "permission";
  const title = isPermission ? "The agent asks for a permission" : "The agent has a question";
  const rejection = isPermission ? [{ id: REJECT, label: "Do not permit" }] : [];
  const questions = question.fields.map(({ text, options = [], many, ownWords }, number) => ({
    id: `${number}`,
    prompt: text.slice(0, PROMPT_LIMIT) || "?",
    selectionMode: many ? "multi" : "single",
    required: true,
    allowOther: ownWords === true && options.length > 0,
    options: [
      ...options.map(({ label, description }, index) => ({
        id: `${index}`,
        label: label.slice(0, LABEL_LIMIT) || `${index + 1}`,
        ...(description ? { description } : {}),
      })),
      ...rejection,
      ...(options.length === 0 ? [{ id: OWN_WORDS, label: "In own words", freeText: true }] : []),
    ],
  }));
  return {
    kind: "ask_user_questions",
    idempotencyKey,
    title,
    continuationPolicy: "none",
    resolverPolicy: "human_only",
    payload: { version: 1, title, supersedeOnUserComment: false, questions },
  };
}

function isOf({ payload }: JsonObject, question: Question): boolean {
  return asks(payload) === asks(interactionOf(question, "").payload);
}

/** What people read in an interaction. Paperclip trims its texts and may reorder its fields. */
function asks(payload: unknown): string {
  const listed = (value: unknown) => (Array.isArray(value) ? value : []).map(objectOf);
  const label = ({ id, label }: JsonObject) => [id, label];
  const read = listed(objectOf(payload).questions).map(({ prompt, options }) => [prompt, listed(options).map(label)]);
  return JSON.stringify(read, (_key, value) => (typeof value === "string" ? value.trim() : value));
}

/** For each field what was chosen, in the question's words; nothing: it was rejected, or not answered. */
export function answersOf(question: Question, result: JsonObject): string[][] {
  const given = (Array.isArray(result.answers) ? result.answers : []).map(objectOf);
  const answers = question.fields.map(({ options = [] }, number) => {
    const { optionIds, otherText } = given.find(({ questionId }) => questionId === `${number}`) ?? {};
    if (typeof otherText === "string" && otherText.trim()) return [otherText.trim()];
    const chosen = Array.isArray(optionIds) ? optionIds : [];
    if (chosen.includes(REJECT)) return [];
    return chosen.flatMap((id) => options[Number(id)]?.label ?? []);
  });
  return answers.every((chosen) => chosen.length > 0) ? answers : [];
}
