/**
 * Copies the plain data of an execution context.
 *
 * An execution context also holds functions, class instances (a tracer), dates and objects that are shared or cyclic.
 * Only plain data is copied, so nothing that is done with the copy can run a getter's code, loop or surprise.
 */
import { InvalidRequest } from "./problems.ts";

export type Plain = null | boolean | number | string | Plain[] | PlainObject;
export type PlainObject = { [name: string]: Plain };

/** Deeper than this no real context is. The Python side has the same limit. */
export const NESTING_LIMIT = 64;

/** Values in one context: shared objects are copied once per place, so a small graph could otherwise become endless. */
export const VALUE_LIMIT = 50_000;

/** What a capture of a live context wrote for `undefined`. */
const CAPTURED_ABSENCE = "[undefined]";
const LONE_SURROGATE = /\p{Surrogate}/gu;

/** `text` with each lone surrogate replaced by U+FFFD. */
export function wellFormed(text: string): string {
  return text.replace(LONE_SURROGATE, "\ufffd");
}

/** Whether `value` is an object with named fields; arrays and null are none. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** `value` if it is an object, else an empty one. */
export function objectOr(value: unknown): PlainObject {
  return isObject(value) ? (value as PlainObject) : {};
}

/** An own field, so that inherited names such as `constructor` are never found in data. */
export function own(value: Record<string, unknown>, name: string): unknown {
  return Object.hasOwn(value, name) ? value[name] : undefined;
}

/**
 * A copy of `raw` that is plain data with well-formed text; what is no data is left out.
 *
 * Numbers stay as they are, even NaN: the fields' own readers refuse them.
 *
 * @throws InvalidRequest when it is nested too deeply or has too many values.
 */
export function tidied(raw: Record<string, unknown>): PlainObject {
  return new Tidying().object(raw, NESTING_LIMIT);
}

/** `value` without nulls inside objects: to Paperclip a null setting and a missing one are the same. */
export function present(value: Plain): Plain {
  if (Array.isArray(value)) return value.map(present);
  if (!isObject(value)) return value;
  const kept = Object.entries(value as PlainObject).filter(([, item]) => item !== null);
  return Object.fromEntries(kept.map(([name, item]) => [name, present(item)]));
}

class Tidying {
  private readonly above = new Set<object>();
  private values = 0;

  object(value: Record<string, unknown>, depth: number): PlainObject {
    const entries = this.inside(value, () =>
      Object.entries(value)
        .filter(([, item]) => item !== CAPTURED_ABSENCE)
        .map(([name, item]) => [wellFormed(name), this.copy(item, depth - 1)] as const),
    );
    return Object.fromEntries(entries.filter((entry): entry is readonly [string, Plain] => entry[1] !== undefined));
  }

  private list(value: readonly unknown[], depth: number): Plain[] {
    return this.inside(value, () => value.map((item) => this.copy(item, depth - 1) ?? null));
  }

  /** Reads inside `value`; whatever leads back to it meanwhile is a circle, and left out. */
  private inside<T>(value: object, read: () => T): T {
    this.above.add(value);
    try {
      return read();
    } finally {
      this.above.delete(value);
    }
  }

  private copy(value: unknown, depth: number): Plain | undefined {
    this.values += 1;
    if (this.values > VALUE_LIMIT) {
      throw new InvalidRequest(`the execution context holds more than ${VALUE_LIMIT} values`);
    }
    if (depth === 0) throw new InvalidRequest(`the execution context is nested deeper than ${NESTING_LIMIT} levels`);
    if (typeof value === "string") return wellFormed(value);
    if (value === null || typeof value === "boolean" || typeof value === "number") return value;
    return typeof value === "object" ? this.composite(value, depth) : undefined;
  }

  private composite(value: object, depth: number): Plain | undefined {
    if (this.above.has(value)) return undefined;
    if (value instanceof Date) return Number.isNaN(value.getTime()) ? null : value.toISOString();
    if (Array.isArray(value)) return this.list(value, depth);
    return isPlainObject(value) ? this.object(value, depth) : undefined;
  }
}

/** An object literal of this realm or another: its prototype is nothing, or has nothing above it. */
function isPlainObject(value: object): value is Record<string, unknown> {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}
