// Writes generated/contracts.ts from the Python contracts' JSON Schema. With `--check` only fails when the file is stale.
import { readFile, writeFile } from "node:fs/promises";
import { compile } from "json-schema-to-typescript";

const CALLERS = [
  ...["RunStart", "SealedRun", "SealedJoin", "CheckStart", "SealedCheck", "CheckReport", "Outcome", "Join", "Joined"],
  ...["SealedMessage", "Question", "Answer", "Delivery"],
];
/** Not part of a type; each of them next to a `$ref` or in a field would also make a second type of it. */
const DROPPED = new Set(["title", "description", "default"]);
/** Keywords whose values are schemas by name; there the names above are names of fields. */
const BY_NAME = new Set(["properties", "$defs"]);

const target = new URL("generated/contracts.ts", import.meta.url);
const schema = JSON.parse(await readFile(new URL("../agent_runs/contracts/schema.json", import.meta.url), "utf8"));
const mapped = (object, change) =>
  Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value, name)]));
const typesOnly = (node) => {
  if (Array.isArray(node)) return node.map(typesOnly);
  if (node === null || typeof node !== "object") return node;
  const kept = Object.fromEntries(Object.entries(node).filter(([keyword]) => !DROPPED.has(keyword)));
  return mapped(kept, (value, keyword) => (BY_NAME.has(keyword) ? mapped(value, typesOnly) : typesOnly(value)));
};
const root = {
  title: "Contracts",
  type: "object",
  properties: Object.fromEntries(CALLERS.map((name) => [name, { $ref: `#/$defs/${name}` }])),
  $defs: mapped(schema.$defs, typesOnly),
};
const banner = "// Generated from agent_runs/contracts/schema.json by `npm run contracts`. Do not edit.\n";
const options = { bannerComment: banner, additionalProperties: false, format: true, style: { printWidth: 120 } };
const text = await compile(root, "Contracts", options);

if (process.argv.includes("--check")) {
  const committed = await readFile(target, "utf8").catch(() => "");
  if (committed !== text) {
    process.stderr.write("generated/contracts.ts is stale: run `npm run contracts`\n");
    process.exitCode = 1;
  }
} else {
  await writeFile(target, text);
}
