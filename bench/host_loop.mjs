// One execution of the built plugin in a process that does nothing else, as Paperclip's server would call it.
//   node host_loop.mjs PLUGIN HOST LOG < context.json     prints the event loop's delays as JSON, in milliseconds
// HOST is Paperclip's entry file, or empty; LOG the file that lines are appended to, one awaited call a line, as
// Paperclip does. Delays are those of a 1 ms timer: what it came later than asked. On a machine that has other work to
// do that is mostly waiting for a core, hence also the CPU time that this thread took between two turns of the timer.
import { appendFile } from "node:fs/promises";
import { readFileSync } from "node:fs";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [plugin, hostEntry, logFile] = process.argv.slice(2);
if (hostEntry) process.argv[1] = hostEntry;
const context = JSON.parse(readFileSync(0, "utf8"));
const RESOLUTION = 1;

const delays = monitorEventLoopDelay({ resolution: RESOLUTION });
const cpu = () => {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1000;
};
let longest = 0;
let before = cpu();
setInterval(() => {
  const now = cpu();
  longest = Math.max(longest, now - before);
  before = now;
}, RESOLUTION);
const measured = (name, began) => {
  delays.disable();
  const ms = (nanoseconds) => Math.max(0, nanoseconds / 1e6 - RESOLUTION);
  const row = { p50: ms(delays.percentile(50)), p99: ms(delays.percentile(99)), max: ms(delays.max), cpu: longest };
  delays.reset();
  return { name, seconds: (Date.now() - began) / 1000, ...row };
};
const during = async (name, work) => {
  await sleep(200);
  const began = Date.now();
  delays.enable();
  longest = 0;
  await sleep(20);
  const result = await work();
  await sleep(20); // so that the timer has recorded the last delay, too
  return { row: measured(name, began), result };
};

// Paperclip's server has its own helpers loaded before any adapter; they are 42 MB
if (hostEntry) {
  const helpers = new URL("../../@paperclipai/adapter-utils/dist/server-utils.js", pathToFileURL(hostEntry));
  await import(helpers).catch(() => import(new URL("../../../@paperclipai/adapter-utils/dist/server-utils.js", pathToFileURL(hostEntry))));
}

const rows = [];
rows.push((await during("nothing", () => sleep(10_000))).row);
const loaded = await during("the plugin is loaded", async () => (await import(pathToFileURL(plugin))).createServerAdapter());
rows.push(loaded.row);
const adapter = loaded.result;
rows.push((await during("the plugin warms up", () => sleep(3000))).row);
let lines = 0;
let first = 0;
let last = 0;
const signal = new AbortController().signal;
const nothing = async () => undefined;
const execution = (runId) =>
  adapter.execute({
    ...context,
    runId,
    authToken: "token-of-a-benchmark",
    signal,
    onMeta: nothing,
    onDispatch: nothing,
    onEvent: nothing,
    onRuntimeProgress: nothing,
    onCancellationReady: nothing,
    onLog: async (_stream, chunk) => {
      await appendFile(logFile, `${JSON.stringify({ ts: new Date().toISOString(), chunk })}\n`);
      last = Date.now();
      first ||= last;
      lines += 1;
    },
  });
for (const name of ["a first run", "a second run"]) {
  lines = 0;
  first = 0;
  const run = await during(name, () => execution(crypto.randomUUID()));
  if (run.result.exitCode !== 0) throw new Error(JSON.stringify(run.result).slice(0, 2000));
  rows.push({ ...run.row, lines, rate: lines / ((last - first) / 1000) });
}
process.stdout.write(JSON.stringify(rows));
process.exit(0);
