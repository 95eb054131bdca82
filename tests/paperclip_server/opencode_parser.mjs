// Runs the parser of Paperclip's own OpenCode adapter.
//   node opencode_parser.mjs PARSER < {"lines": ["…"]}   prints the entries of each line
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { parseOpenCodeStdoutLine } = await import(pathToFileURL(process.argv[2]).href);
const { lines } = JSON.parse(readFileSync(0, "utf8"));
const ts = "2026-01-01T00:00:00.000Z";
process.stdout.write(JSON.stringify(lines.map((line) => parseOpenCodeStdoutLine(line, ts))));
