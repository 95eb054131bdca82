// Runs a UI parser as Paperclip's browser does: in the worker program that its UI ships, found in the built assets.
//   node ui_worker.mjs ASSETS < {"source": "…", "lines": ["…"]}   prints the entries of each line
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const MARK = "Parser module exports no usable parseStdoutLine";
const assets = process.argv[2];
const file = readdirSync(assets).find(
  (name) => name.endsWith(".js") && readFileSync(join(assets, name), "utf8").includes(MARK),
);
if (!file) throw new Error(`no asset in ${assets} has the parser's worker`);
const text = readFileSync(join(assets, file), "utf8");
const at = text.indexOf(MARK);
const begin = text.lastIndexOf('`\n"use strict";', at);
let end = at;
while (text[end] !== "`" || text[end - 1] === "\\") end += 1;
const bootstrap = vm.runInNewContext(text.slice(begin, end + 1));

const { source, lines } = JSON.parse(readFileSync(0, "utf8"));
const answers = [];
const self = { fetch() {}, XMLHttpRequest() {}, WebSocket() {}, postMessage: (message) => answers.push(message) };
const context = vm.createContext({ self, console: undefined });
vm.runInContext(bootstrap, context, { timeout: 5000 });
if (self.fetch !== undefined) throw new Error("the worker did not lock itself down");
self.onmessage({ data: { type: "init", source } });
if (answers[0]?.type !== "ready") throw new Error(`the parser is refused: ${JSON.stringify(answers[0])}`);
const ts = "2026-01-01T00:00:00.000Z";
for (const [id, line] of lines.entries()) self.onmessage({ data: { type: "parse", id, line, ts } });
const entries = new Map(answers.filter((one) => one.type === "result").map((one) => [one.id, one.entries]));
process.stdout.write(JSON.stringify(lines.map((_, id) => entries.get(id))));
