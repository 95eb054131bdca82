/**
 * The rules of Python that a request's text depends on: what counts as white space, as printable, as empty.
 *
 * The worker's side of this project is Python; both sides must accept and refuse the same contexts with the same text.
 * Source: docs.python.org, str.strip, str.splitlines, str.isprintable, truth value testing, posixpath.normpath.
 */
import { posix } from "node:path";

const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const ENDS = new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "g");
const BREAKS = "\\n\\r\\v\\f\\x1c-\\x1e\\x85\\u2028\\u2029";
const LINE_END = new RegExp(`\\r\\n|[${BREAKS}]`);
const PRINTABLE = /^(?:[^\p{C}\p{Z}]| )*$/u;

/** `str.strip()`. */
export function strip(text: string): string {
  return text.replace(ENDS, "");
}

/** `str.splitlines()`, except that a final line end adds an empty line, which makes no difference here. */
export function lines(text: string): string[] {
  return text.split(LINE_END);
}

/** `str.isprintable()`: neither control characters nor any space but the plain one. */
export function isPrintable(text: string): boolean {
  return PRINTABLE.test(text);
}

/** Python's truth of a JSON value: empty lists and objects are false, too. */
export function truthy(value: unknown): boolean {
  if (Array.isArray(value)) return value.length > 0;
  if (typeof value === "object" && value !== null) return Object.keys(value).length > 0;
  return typeof value === "number" ? value !== 0 : Boolean(value);
}

/** `posixpath.normpath()`: no final slash, and two leading slashes stay two. */
export function normalPath(path: string): string {
  const normal = posix.normalize(path);
  const bare = normal.length > 1 ? normal.replace(/\/+$/, "") : normal;
  return /^\/\/(?!\/)/.test(path) ? `/${bare}` : bare;
}

/** `text` cut to so many code points. */
export function cut(text: string, codePoints: number): string {
  return text.length <= codePoints ? text : Array.from(text).slice(0, codePoints).join("");
}
