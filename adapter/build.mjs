// Bundles the package: one ESM entry for Paperclip's server, one CommonJS file for its UI worker.
// `node build.mjs [FOLDER]`; without one into dist.
import { rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import { build } from "esbuild";

const common = { bundle: true, legalComments: "none", logLevel: "warning", absWorkingDir: import.meta.dirname };

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
await Promise.all([
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
