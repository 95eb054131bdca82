// Writes src/contracts.ts from the Python contracts' JSON Schema. With `--check` only fails when the file is stale.
import { readFile, writeFile } from "node:fs/promises";
import { compile } from "json-schema-to-typescript";

const CALLERS = [
  ...["RunStart", "SealedRun", "SealedJoin", "CheckStart", "SealedCheck", "CheckReport", "Outcome", "Join", "Joined"],
];
const target = new URL("src/contracts.ts", import.meta.url);
const schema = JSON.parse(await readFile(new URL("../agent_runs/contracts/schema.json", import.meta.url), "utf8"));
// Without the titles that pydantic gives to every field: each would become a type of its own.
const untitled = (node) => {
  if (Array.isArray(node)) return node.map(untitled);
  if (node === null || typeof node !== "object") return node;
  return Object.fromEntries(
    Object.entries(node)
      .filter(([name, value]) => !(name === "title" && typeof value === "string"))
      .map(([name, value]) => [name, untitled(value)]),
  );
};
const root = {
  title: "Contracts",
  type: "object",
  additionalProperties: false,
  properties: Object.fromEntries(CALLERS.map((name) => [name, { $ref: `#/$defs/${name}` }])),
  $defs: untitled(schema.$defs),
};
const banner = "// Generated from agent_runs/contracts/schema.json by `npm run contracts`. Do not edit.\n";
const text = await compile(root, "Contracts", { bannerComment: banner, format: true, style: { printWidth: 120 } });

if (process.argv.includes("--check")) {
  const committed = await readFile(target, "utf8").catch(() => "");
  if (committed !== text) {
    process.stderr.write("src/contracts.ts is stale: run `npm run contracts`\n");
    process.exitCode = 1;
  }
} else {
  await writeFile(target, text);
}
