/**
 * The patterns of `workspaceIgnore`: Git's, without negation and without backslashes. Same rules as
 * `agent_runs/contracts/ignore.py`; both are tested by `tests/fixtures/ignore.json`.
 */

import { ConfigurationError } from "../errors.ts";
import { ROOT } from "./tree.ts";

const FIELD = "config.workspaceIgnore";
const LONGEST = 200;
const MOST = 4096;
const SET = /\[[!^]?\]?[^\]/]*\]/gu;
const TOKEN = /\[(?<not>[!^]?)(?<set>\]?[^\]/]*)\]|(?<any>\*+)|(?<one>\?)|(?<other>.)/gsu;

/**
 * Whether a path of a tree, or a folder of it, is left out.
 *
 * @param value a list, or the text of a form with a pattern in each line.
 * @throws ConfigurationError naming a wrong pattern.
 */
export function matcher(value: unknown): (path: string) => boolean {
  const lines = typeof value === "string" ? value.split(/\r\n|\r|\n/) : (value ?? []);
  if (!(Array.isArray(lines) && lines.every((line) => typeof line === "string"))) {
    throw new ConfigurationError({ field: FIELD, remedy: "must be a list of patterns" });
  }
  const patterns = lines.map((line: string) => line.trim()).filter((line) => line !== "" && !line.startsWith("#"));
  if (patterns.join("").length > MOST) {
    throw new ConfigurationError({ field: FIELD, remedy: `must not have more than ${MOST} characters together` });
  }
  const rules = patterns.map(expression);
  const matches = (path: string): boolean =>
    rules.some((rule) => rule.test(path)) || (path.includes("/") && matches(path.slice(0, path.lastIndexOf("/"))));
  return (path) => rules.length > 0 && matches(path.slice(ROOT.length + 1));
}

function expression(pattern: string): RegExp {
  const refused = (fault: string) =>
    new ConfigurationError({ field: FIELD, remedy: `has ${JSON.stringify(pattern.slice(0, 80))}, which ${fault}` });
  const fault = faultOf(pattern);
  if (fault) throw refused(fault);
  const names = pattern.replace(/^\/|\/$/g, "").split("/");
  if (!pattern.replace(/\/$/, "").includes("/")) names.unshift("**");
  const parts = names.map((name, number) => {
    const isLast = number === names.length - 1;
    if (name === "**") return isLast ? ".+" : "(?:.+/)?";
    return name.replace(TOKEN, translated) + (isLast ? "" : "/");
  });
  try {
    return new RegExp(`^${parts.join("")}$`, "su");
  } catch {
    throw refused("has an unusable [set]");
  }
}

function faultOf(pattern: string): string | undefined {
  if (pattern.length > LONGEST) return `has more than ${LONGEST} characters`;
  if (pattern.startsWith("!")) return "begins with '!': nothing can be taken in again";
  if (/[\\\p{C}]/u.test(pattern)) return "has a backslash or a control character";
  const names = pattern.replace(/^\/|\/$/g, "").split("/");
  if (names.some((name) => ["", ".", ".."].includes(name))) return "has a part that is empty, '.' or '..'";
  if (pattern.replace(SET, "").includes("[")) return "has a '[' without its ']'";
  return undefined;
}

function translated(...found: unknown[]): string {
  const { not, set, any, one, other } = found.at(-1) as { [name: string]: string | undefined };
  if (any) return "[^/]*";
  if (one) return "[^/]";
  if (set === "") return "["; // which makes no regular expression
  if (set !== undefined) return `(?!/)[${not ? "^" : ""}${set.replace(/[\\\]^[]/g, escaped)}]`;
  return `${other}`.replace(/[\\^$.*+?()[\]{}|/]/g, escaped);
}

function escaped(character: string): string {
  return `\\${character}`;
}
