/** Where agents reach Paperclip, and why an address is useless to them. */
import { isIP } from "node:net";
import type { JsonObject } from "../paperclip.ts";
import type { Settings } from "../settings.ts";
import { isAbsoluteUrl } from "./context.ts";
import { strip } from "./python.ts";

const REMEDY = "set AGENT_RUNS_PAPERCLIP_API_URL to Paperclip's address as pods reach it";

/** An address for the pods, or a note for people: why there is none and what to set. */
export interface ApiUrl {
  readonly url?: string;
  readonly note?: string;
}

/**
 * The agent's own setting, else ours, else Paperclip's own address unless a pod cannot mean it.
 *
 * Without one the worker's setting counts, of which nothing is known here: hence a note, not an error.
 *
 * @param environment of Paperclip's process.
 */
export function apiUrl(settings: Settings, config: JsonObject, environment: NodeJS.ProcessEnv): ApiUrl {
  const configured = config.paperclipApiUrl;
  if (typeof configured === "string" && strip(configured)) return { url: configured };
  if (settings.paperclipApiUrl !== undefined) return { url: settings.paperclipApiUrl };
  const own = hostUrl(environment);
  const note = warning(own);
  return note === undefined && own !== undefined ? { url: own } : { note };
}

/** Paperclip's address as its own process knows it. */
export function hostUrl(environment: NodeJS.ProcessEnv): string | undefined {
  return environment.PAPERCLIP_API_URL || environment.PAPERCLIP_RUNTIME_API_URL || undefined;
}

/** Why `url` is useless inside a pod, as a sentence with the remedy; undefined when nothing is wrong with it. */
export function warning(url: string | undefined): string | undefined {
  if (!url) return `agents get no PAPERCLIP_API_URL and cannot report: ${REMEDY}`;
  if (!isAbsoluteUrl(url)) return `PAPERCLIP_API_URL is not an absolute URL: ${REMEDY}`;
  const host = new URL(url).hostname.replace(/^\[|\]$/g, "");
  return isLoopback(host)
    ? `PAPERCLIP_API_URL points at ${host}, which in a pod is the pod itself: ${REMEDY}`
    : undefined;
}

/** Whether `host` means the machine, or the pod, that asks. */
export function isLoopback(host: string): boolean {
  if (host === "localhost" || host.endsWith(".localhost")) return true;
  if (isIP(host) === 4) return host.startsWith("127.") || host === "0.0.0.0";
  return isIP(host) === 6 && (host === "::1" || host === "::" || host.startsWith("::ffff:7f"));
}
