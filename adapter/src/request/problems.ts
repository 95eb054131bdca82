/** What is wrong with a request, said once for people: Paperclip's path of the field and the remedy, never a value. */

/** As long as a failure's message may be in a history. The Python side cuts there, too. */
const MESSAGE_LIMIT = 2000;

/** One wrong field by Paperclip's path, and what to do about it. */
export interface Problem {
  readonly field: string;
  readonly remedy: string;
}

/**
 * The context lacks or misspells something a run needs. Raised before anything exists.
 *
 * `code` is Paperclip's `errorCode`, the same one the Python side uses. `problems` is empty when no field is to blame.
 */
export class InvalidRequest extends Error {
  override readonly name = "InvalidRequest";
  readonly code = "invalid_request";
  readonly problems: Problem[];

  /** @param said the wrong fields, each said once; or a sentence when no field is to blame. */
  constructor(said: string | readonly Problem[]) {
    const problems = typeof said === "string" ? [] : distinct(said);
    const message = typeof said === "string" ? said : problems.map(sentence).join("; ");
    super(message.slice(0, MESSAGE_LIMIT));
    this.problems = problems;
  }

  /** Paperclip's paths of the wrong fields, each once. */
  get fields(): string[] {
    return [...new Set(this.problems.map(({ field }) => field))];
  }
}

function sentence({ field, remedy }: Problem): string {
  return `${field} ${remedy}`;
}

function distinct(problems: readonly Problem[]): Problem[] {
  return [...new Map(problems.map((problem) => [sentence(problem), problem])).values()];
}
