/** Reads JSON whose text is mostly one long string, in turns with whatever else the host has to do. */

import { turn } from "./waiting.ts";

/** Characters that are read in one piece. */
const PIECE = 256 * 1024;

/** The object that `text` is; `field` names its member that may be long. Rejects as `JSON.parse` throws. */
export async function longJson(text: string, field: string, piece: number = PIECE): Promise<unknown> {
  const key = `"${field}":"`;
  const begin = text.indexOf(key) + key.length;
  if (text.length <= piece || begin < key.length || text.slice(0, begin - key.length).includes("\\")) {
    return JSON.parse(text);
  }
  const read: string[] = [];
  let from = begin;
  for (;;) {
    const cut = whole(text, from, Math.min(from + piece, text.length));
    const end = closing(text, from, cut);
    read.push(JSON.parse(`"${text.slice(from, end ?? cut)}"`));
    if (end !== undefined) {
      const rest: unknown = JSON.parse(`${text.slice(0, begin)}${text.slice(end)}`);
      return { ...(rest as object), [field]: read.join("") };
    }
    if (cut >= text.length) return JSON.parse(text); // without an end; says what is wrong
    from = cut;
    await turn();
  }
}

/** The last place up to `to` that is not inside an escape; `from` is not inside one. */
function whole(text: string, from: number, to: number): number {
  const last = text.lastIndexOf("\\", to - 1);
  if (last < from || last < to - 6) return to;
  return escaped(text, from, last) ? to : last === from ? Math.min(from + 6, text.length) : last;
}

/** Where the string's closing quote is, if that is before `to`. */
function closing(text: string, from: number, to: number): number | undefined {
  for (let at = text.indexOf('"', from); at >= 0 && at < to; at = text.indexOf('"', at + 1)) {
    if (!escaped(text, from, at)) return at;
  }
  return undefined;
}

/** Whether a backslash takes the character at `at` as its own. */
function escaped(text: string, from: number, at: number): boolean {
  let backslashes = 0;
  while (at - 1 - backslashes >= from && text[at - 1 - backslashes] === "\\") backslashes += 1;
  return backslashes % 2 === 1;
}
