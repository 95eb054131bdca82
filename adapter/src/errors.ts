/** What a person has to correct before a run can start. A message names fields and what they must be, never a value. */

export type Problem = { field: string; remedy: string };

/** Settings are unknown or wrong. */
export class ConfigurationError extends Error {
  override readonly name = "ConfigurationError";
  readonly problems: readonly Problem[];
  constructor(...problems: readonly Problem[]) {
    super(problems.map(({ field, remedy }) => `${field} ${remedy}`).join("; "));
    this.problems = problems;
  }
}

/** What Paperclip hands over cannot be sent to a worker: the field by Paperclip's path, and the remedy. */
export class InvalidRequest extends Error {
  override readonly name = "InvalidRequest";
}
