/**
 * Readers of single fields: each takes a value as it comes, gives it in the form a request has, or notes a problem.
 *
 * They accept what the Python contracts accept, coercions included, and give the same errors for the rest; pydantic's texts
 * are not those of any TypeScript library, which is why none reads these fields.
 * Source: pydantic 2, "Conversion Table", lax mode; agent_runs/contracts/request.py.
 */

import { isObject, own, wellFormed } from "./plain.ts";
import type { Problem } from "./problems.ts";
import { cut, lines, strip } from "./python.ts";

/** Gives what `value` means, or notes problems at `place` and gives undefined. */
export type Reader<T> = (value: unknown, place: Place) => T | undefined;
type Fields = Record<string, Reader<unknown>>;
type Read<F extends Fields> = { [Name in keyof F]?: NonNullable<ReturnType<F[Name]>> };

const PATH_STEPS = 8;
const PATH_LIMIT = 200;

/** Where a value is in the context, and the problems found so far. */
export class Place {
  readonly problems: Problem[];
  private readonly steps: readonly (string | number)[];

  constructor(problems: Problem[], steps: readonly (string | number)[] = []) {
    this.problems = problems;
    this.steps = steps;
  }

  at(step: string | number): Place {
    return new Place(this.problems, [...this.steps, step]);
  }

  refuse(remedy: string): undefined {
    const path = this.steps.slice(0, PATH_STEPS).map((step) => (typeof step === "number" ? `[${step}]` : `.${step}`));
    const field = cut(wellFormed(path.join("").replace(/^\.+/, "")), PATH_LIMIT) || "context";
    this.problems.push({ field, remedy });
    return undefined;
  }
}

export const text: Reader<string> = (value, place) =>
  typeof value === "string" ? value : place.refuse("must be text");

export const data: Reader<Record<string, unknown>> = (value, place) =>
  isObject(value) ? value : place.refuse("must be an object");

/** A form saves an untouched text field as an empty string: blank is absent. */
export function unlessBlank<T>(reader: Reader<T>): Reader<T> {
  return (value, place) => (typeof value === "string" && strip(value) === "" ? undefined : reader(value, place));
}

/** Text that may be absent; kept as it is, not trimmed. */
export const optionalText = unlessBlank(text);

/** Text of a certain form. `trims`: white space around it does not count and goes. */
export function matching(pattern: RegExp, remedy: string, { trims = true } = {}): Reader<string> {
  return (value, place) => {
    const given = text(value, place);
    if (given === undefined) return undefined;
    const kept = trims ? strip(given) : given;
    return pattern.test(kept) ? kept : place.refuse(remedy);
  };
}

export function oneOf<const T extends string>(...choices: readonly T[]): Reader<T> {
  const quoted = choices.map((choice) => `'${choice}'`);
  const remedy = `should be ${quoted.slice(0, -1).join(", ")} or ${quoted.at(-1)}`;
  return (value, place) => choices.find((choice) => choice === value) ?? place.refuse(remedy);
}

const WHOLE = "must be a whole number";
/** Digits with single underscores between them, a sign, and a fraction of zeros. */
const DIGITS = /^[+-]?[0-9]+(?:_[0-9]+)*(?:\.0*)?$/;

/** A whole number, also as text or as a float without a fraction. */
export const integer: Reader<number> = (value, place) => {
  if (typeof value === "boolean") return Number(value);
  if (typeof value === "number") return Number.isInteger(value) ? value : place.refuse(WHOLE);
  const digits = typeof value === "string" ? strip(value) : "";
  return DIGITS.test(digits) ? Number(digits.replaceAll("_", "")) : place.refuse(WHOLE);
};

export function wholeNumber(least: number, most: number): Reader<number> {
  return (value, place) => {
    if (typeof value === "boolean") return place.refuse("must be a number, not true or false");
    const number = integer(value, place);
    if (number === undefined) return undefined;
    if (number < least) return place.refuse(`should be greater than or equal to ${least}`);
    return number > most ? place.refuse(`should be less than or equal to ${most}`) : number;
  };
}

const YES = ["1", "on", "t", "true", "y", "yes"];
const NO = ["0", "off", "f", "false", "n", "no"];

/** True or false, also as 0 and 1 or in words. */
export const flag: Reader<boolean> = (value, place) => {
  if (typeof value === "boolean") return value;
  const word = typeof value === "string" || typeof value === "number" ? String(value).toLowerCase() : "";
  if (YES.includes(word)) return true;
  return NO.includes(word) ? false : place.refuse("must be true or false");
};

export function list<T>(reader: Reader<T>): Reader<T[]> {
  return (value, place) => {
    if (!Array.isArray(value)) return place.refuse("must be a list");
    return value.map((item, index) => reader(item, place.at(index))).filter((item) => item !== undefined) as T[];
  };
}

export function dictionary<T>(reader: Reader<T>): Reader<Record<string, T>> {
  return (value, place) => {
    const given = data(value, place);
    if (given === undefined) return undefined;
    const read = Object.entries(given).map(([name, item]) => [name, reader(item, place.at(name))] as const);
    return Object.fromEntries(read.filter(([, item]) => item !== undefined)) as Record<string, T>;
  };
}

/** An object's known fields in this order; others are ignored. What equals `defaults` is left out, as Python does. */
export function object<F extends Fields>(fields: F, defaults: Partial<Record<keyof F, unknown>> = {}): Reader<Read<F>> {
  return (value, place) => {
    const given = data(value, place);
    if (given === undefined) return undefined;
    const read = Object.entries(fields).map(
      ([name, reader]) => [name, ifGiven(reader)(own(given, name), place.at(name))] as const,
    );
    return Object.fromEntries(read.filter(([name, item]) => item !== undefined && item !== defaults[name])) as Read<F>;
  };
}

/** A reader of an object's field: what is not there is not read, unless it must be there. */
function ifGiven<T>(reader: Reader<T>): Reader<T> {
  return (value, place) =>
    (value === undefined || value === null) && !MUST.has(reader) ? undefined : reader(value, place);
}

const MUST = new WeakSet<object>();

/** A field that must be there. */
export function required<T>(reader: Reader<T>, remedy = "is missing"): Reader<T> {
  const must: Reader<T> = (value, place) => (value === undefined ? place.refuse(remedy) : reader(value, place));
  MUST.add(must);
  return must;
}

const PAIR_LINES = "each line must be 'key=value'; blank lines and lines starting with '#' are skipped";

/** `key=value` lines, JSON object text, or an object: the three forms that the existing adapters accept. */
export function pairs(key: RegExp, keyRemedy: string): Reader<Record<string, string>> {
  const texts = dictionary(text);
  return (value, place) => {
    const before = place.problems.length;
    const given = typeof value === "string" ? parsedPairs(strip(value), place) : value;
    if (place.problems.length > before) return undefined;
    const found = texts(given, place);
    if (found === undefined || place.problems.length > before) return undefined;
    return Object.keys(found).every((name) => key.test(name)) ? found : place.refuse(keyRemedy);
  };
}

function parsedPairs(given: string, place: Place): unknown {
  if (given.startsWith("{")) return parsed(given) ?? place.refuse("must be 'key=value' lines or a JSON object");
  const entries = lines(given).filter((line) => strip(line) !== "" && !strip(line).startsWith("#"));
  const found = entries.map((line) => line.split(/=(.*)/s, 2).map(strip));
  const sound = found.every(([key, value]) => key && value !== undefined);
  return sound ? Object.fromEntries(found) : place.refuse(PAIR_LINES);
}

/** A list, or the JSON text of one as it comes from a text area. */
export function jsonList<T>(reader: Reader<T>, remedy: string): Reader<T[]> {
  const items = list(reader);
  return (value, place) => {
    if (typeof value !== "string") return items(value, place);
    if (strip(value) === "") return undefined;
    const found = parsed(value);
    if (found === undefined) return place.refuse(remedy);
    return found === null ? undefined : items(found, place);
  };
}

function parsed(given: string): unknown {
  try {
    return JSON.parse(given);
  } catch {
    return undefined;
  }
}
