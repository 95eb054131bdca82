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

  constructor(message: string, problems: Problem[] = []) {
    super(message.slice(0, MESSAGE_LIMIT));
    this.problems = problems;
  }

  /** Paperclip's paths of the wrong fields, each once. */
  get fields(): string[] {
    return [...new Set(this.problems.map(({ field }) => field))];
  }
}

/** All problems as one refusal, each said once. */
export function refusal(problems: readonly Problem[]): InvalidRequest {
  const said = new Map(problems.map((problem) => [`${problem.field} ${problem.remedy}`, problem]));
  return new InvalidRequest([...said.keys()].join("; "), [...said.values()]);
}
