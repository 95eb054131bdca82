/**
 * Paperclip's tool servers for one run, in OpenCode's spelling and at addresses that a pod can reach.
 *
 * Paperclip names them by its own address, which in a pod is often the pod's, and opens its own with the run's token,
 * which changes when a later run takes over. Both are variables of the agent's environment, so they are named as
 * such: OpenCode puts `{env:NAME}` in place when it reads its configuration, and where the pod has a proxy for
 * Paperclip, that one knows the current token. Source: opencode.ai/docs/config; Paperclip 2026.916.1.
 */
import type { AdapterExecutionContext, RuntimeTools } from "../paperclip.ts";
import { isLoopback } from "./api-url.ts";
import { isObject } from "./plain.ts";

type Servers = Record<string, Record<string, unknown>>;

const TOOL_SERVERS_TIMEOUT_MS = 5000;
const SERVERS_LIMIT = 64;

/** Where Paperclip is: as itself knows it, and as pods reach it. Either may be unknown. */
export interface Addresses {
  readonly host?: string;
  readonly pods?: string;
}

/**
 * The run's tool servers as remote MCP servers; none, with a note for people, when Paperclip does not name them.
 *
 * @param taken names that the agent's own configuration uses: those stay the agent's.
 */
export async function toolServers(
  context: Pick<AdapterExecutionContext, "runtimeMcp" | "authToken">,
  { host }: Addresses,
  taken: ReadonlySet<string>,
): Promise<{ servers: Servers; note?: string }> {
  const offered = await offeredServers(context.runtimeMcp).catch(() => undefined);
  if (offered === undefined)
    return { servers: {}, note: "Paperclip did not name its tool servers; the agent does without" };
  const names = new Set(taken);
  const servers: Servers = {};
  for (const server of offered.slice(0, SERVERS_LIMIT)) {
    if (!isObject(server) || typeof server.name !== "string" || typeof server.url !== "string") continue;
    const name = freeName(server.name, names);
    names.add(name);
    servers[name] = remote(server.url, server.token, context.authToken, host);
  }
  return { servers };
}

/** Connection tools with addresses that pods reach. */
export function reachableTools(tools: RuntimeTools | undefined, addresses: Addresses): RuntimeTools | undefined {
  if (!isObject(tools)) return tools;
  const rest = isObject(tools.rest) ? tools.rest : {};
  const moved = (address: unknown) => (typeof address === "string" ? reachable(address, addresses) : address);
  return {
    ...tools,
    mcpEndpoint: moved(tools.mcpEndpoint) as string,
    rest: Object.fromEntries(Object.entries(rest).map(([name, address]) => [name, moved(address)])),
  };
}

/** `address` as pods reach it, if it is one of Paperclip's own and it is known where pods find those. */
export function reachable(address: string, { host, pods }: Addresses): string {
  const path = pathAtPaperclip(address, host);
  return path === undefined || pods === undefined ? address : pods.replace(/\/+$/, "") + path;
}

function remote(url: string, token: unknown, runToken: string | undefined, host: string | undefined) {
  const path = pathAtPaperclip(url, host);
  const bearer = token !== undefined && token === runToken ? "{env:PAPERCLIP_API_KEY}" : token;
  return {
    type: "remote",
    url: path === undefined ? url : `{env:PAPERCLIP_API_URL}${path}`,
    ...(typeof bearer === "string" && bearer ? { headers: { Authorization: `Bearer ${bearer}` } } : {}),
  };
}

/** The part of `address` after Paperclip's base; undefined when it is somewhere else. */
function pathAtPaperclip(address: string, host: string | undefined): string | undefined {
  if (!URL.canParse(address)) return undefined;
  const { origin, hostname, pathname, search } = new URL(address);
  const base = host !== undefined && URL.canParse(host) ? new URL(host) : undefined;
  if (origin !== base?.origin && !isLoopback(hostname.replace(/^\[|\]$/g, ""))) return undefined;
  const prefix = (origin === base?.origin ? base.pathname : "/").replace(/\/+$/, "");
  return (pathname.startsWith(`${prefix}/`) ? pathname.slice(prefix.length) : pathname) + search;
}

async function offeredServers(access: AdapterExecutionContext["runtimeMcp"]): Promise<unknown[] | undefined> {
  if (typeof access?.getServers !== "function") return [];
  let clock: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => {
    clock = setTimeout(() => resolve(undefined), TOOL_SERVERS_TIMEOUT_MS);
  });
  try {
    const found: unknown = await Promise.race([access.getServers(), late]);
    return Array.isArray(found) ? found : undefined;
  } finally {
    clearTimeout(clock);
  }
}

/** OpenCode makes tool names of server names: letters, digits and dashes only. */
function freeName(name: string, taken: ReadonlySet<string>): string {
  const slug =
    name
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "-")
      .replace(/^-+|-+$/g, "")
      .slice(0, 48) || "paperclip";
  let free = slug;
  for (let again = 2; taken.has(free); again += 1) free = `${slug}-${again}`;
  return free;
}
