/** What is wrong with a request, for people: Paperclip's path of the field and the remedy, never a value. */

/** As long as a failure's message may be in a history. The Python side cuts there, too. */
const REQUEST_MESSAGE_LIMIT = 2000;

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

  /** @param cause the wrong fields, each reported once; or a sentence when no field is to blame. */
  constructor(cause: string | readonly Problem[]) {
    const problems = typeof cause === "string" ? [] : distinct(cause);
    const message = typeof cause === "string" ? cause : problems.map(sentence).join("; ");
    super(message.slice(0, REQUEST_MESSAGE_LIMIT));
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
