// One execution's part of a carried folder, by the plugin's own code: `out` or `back`. See carry.py.
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [adapter, scratch, what] = process.argv.slice(2);
const { url, keyFile, folder, agent, runId } = JSON.parse(process.env.CARRY);
const { build } = await import(pathToFileURL(join(adapter, "node_modules", "esbuild", "lib", "main.js")).href);
const bundle = join(scratch, "carry-bundle.mjs");
const names = ["workspace/carried", "log", "settings"].map((name) => `export * from "./${name}.ts";`);
await build({
  stdin: { contents: names.join("\n"), resolveDir: join(adapter, "src") },
  bundle: true,
  outfile: bundle,
  platform: "node",
  format: "esm",
  banner: { js: 'import { createRequire } from "node:module"; const require = createRequire(import.meta.url);' },
});
const { carriedFolder, RunLog, OutageLog, settingsFrom } = await import(pathToFileURL(bundle).href);

const log = new RunLog(async () => undefined);
const settings = settingsFrom({ AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL: url, AGENT_RUNS_TRANSCRIPTS_KEY_FILE: keyFile });
const host = { agent, config: { workspace: "carried" }, context: { paperclipWorkspace: { cwd: folder } } };
const carried = await carriedFolder(host, { settings, helpers: {}, log, outage: new OutageLog(log, "again") });
const [began, cpu] = [performance.now(), process.cpuUsage()];
await carried[what](runId);
const { user, system } = process.cpuUsage(cpu);
const rss = process.resourceUsage().maxRSS / 1024;
console.log(JSON.stringify({ seconds: (performance.now() - began) / 1000, cpu: (user + system) / 1e6, rss }));
