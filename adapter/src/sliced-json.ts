/** Reads JSON that is mostly one long string, in slices between which the host's other work has the event loop. */

import { yieldToEventLoop } from "./waits.ts";

/** Characters that are parsed in one slice. */
const SLICE = 256 * 1024;

/** The object in `text`; `field` names its member that may be long. Rejects as `JSON.parse` throws. */
export async function parseJsonInSlices(text: string, field: string, slice: number = SLICE): Promise<unknown> {
  const key = `"${field}":"`;
  const begin = text.indexOf(key) + key.length;
  if (text.length <= slice || begin < key.length || text.slice(0, begin - key.length).includes("\\")) {
    return JSON.parse(text);
  }
  const parsed: string[] = [];
  let from = begin;
  for (;;) {
    const cut = cutOutsideEscapes(text, from, Math.min(from + slice, text.length));
    const end = closingQuote(text, from, cut);
    parsed.push(JSON.parse(`"${text.slice(from, end ?? cut)}"`));
    if (end !== undefined) {
      const rest: unknown = JSON.parse(`${text.slice(0, begin)}${text.slice(end)}`);
      return { ...(rest as object), [field]: parsed.join("") };
    }
    if (cut >= text.length) return JSON.parse(text); // the string has no end: this throws with what is wrong
    from = cut;
    await yieldToEventLoop();
  }
}

/** The last place up to `to` that is not inside an escape; `from` is not inside one. */
function cutOutsideEscapes(text: string, from: number, to: number): number {
  const last = text.lastIndexOf("\\", to - 1);
  if (last < from || last < to - 6) return to;
  return isEscaped(text, from, last) ? to : last === from ? Math.min(from + 6, text.length) : last;
}

/** Where the string's closing quote is, if that is before `to`. */
function closingQuote(text: string, from: number, to: number): number | undefined {
  for (let at = text.indexOf('"', from); at >= 0 && at < to; at = text.indexOf('"', at + 1)) {
    if (!isEscaped(text, from, at)) return at;
  }
  return undefined;
}

/** Whether the character at `at` belongs to the backslash before it. */
function isEscaped(text: string, from: number, at: number): boolean {
  let backslashes = 0;
  while (at - 1 - backslashes >= from && text[at - 1 - backslashes] === "\\") backslashes += 1;
  return backslashes % 2 === 1;
}
