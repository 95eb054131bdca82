// Bundles the package: one ESM entry for Paperclip's server, one CommonJS file for its UI worker, and a folder that installs
// the same entry a second time: Paperclip takes one type from a folder.
// `node build.mjs [FOLDER]`; without one into dist.
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { build } from "esbuild";

const common = {
  bundle: true,
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
  absWorkingDir: import.meta.dirname,
};

// Bundled CommonJS packages ask for `require` and `__dirname`, which an ES module does not have.
const banner = [
  'import { createRequire as __createRequire } from "node:module";',
  'import { dirname as __directoryOf } from "node:path";',
  'import { fileURLToPath as __fileOf } from "node:url";',
  "const require = __createRequire(import.meta.url);",
  "const __filename = __fileOf(import.meta.url);",
  "const __dirname = __directoryOf(__filename);",
].join("\n");

const folder = resolve(import.meta.dirname, process.argv[2] ?? "dist");
await rm(folder, { recursive: true, force: true });
const built = await Promise.all([
  build({
    ...common,
    entryPoints: ["src/index.ts"],
    outfile: join(folder, "index.js"),
    platform: "node",
    format: "esm",
    target: "node20",
    banner: { js: banner },
  }),
  build({
    ...common,
    entryPoints: ["src/ui-parser.ts"],
    outfile: join(folder, "ui-parser.cjs"),
    platform: "neutral",
    format: "cjs",
    target: "es2020",
  }),
]);
const { version } = JSON.parse(await readFile(join(import.meta.dirname, "package.json"), "utf8"));
const override = join(folder, "opencode_local");
await mkdir(override);
await writeFile(join(override, "package.json"), `${JSON.stringify({ version, type: "module", main: "index.js" })}\n`);
// Paperclip reloads a module by a new query, which has to reach the entry.
await writeFile(
  join(override, "index.js"),
  `const adapter = await import(new URL("../index.js" + new URL(import.meta.url).search, import.meta.url).href);
export const createServerAdapter = () => adapter.createServerAdapter("opencode_local");
`,
);
await writeFile(
  join(folder, "licenses.txt"),
  await licenses(built.flatMap(({ metafile }) => Object.keys(metafile.inputs))),
);

/** The licences of the packages that are in the bundles, which whoever passes them on has to pass on as well. */
async function licenses(files) {
  const bundled = files.map((file) => /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(file)?.[1]).filter(Boolean);
  const texts = [...new Set(bundled)].sort().map(async (path) => {
    const home = join(import.meta.dirname, path);
    const { name, version, license } = JSON.parse(await readFile(join(home, "package.json"), "utf8"));
    const names = (await readdir(home)).filter((each) => /^(licen[cs]e|notice)/i.test(each)).sort();
    const contents = await Promise.all(names.map((each) => readFile(join(home, each), "utf8")));
    return [`${name} ${version}: ${license}`, ...contents.map((text) => text.trim())].join("\n\n");
  });
  return `${(await Promise.all(texts)).join(`\n\n${"-".repeat(80)}\n\n`)}\n`;
}
