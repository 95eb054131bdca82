/**
 * Paperclip's own HTTP API, as its process reaches itself: for the few questions that the adapter interface does not
 * answer. Every request is bounded in time; none rejects with what was sent.
 */

import { type JsonObject, objectOf } from "./paperclip.ts";

const REQUEST_TIMEOUT_MS = 5000;

/** Paperclip's states of a run that has not ended. */
export const OPEN_RUN_STATES: ReadonlySet<unknown> = new Set(["queued", "running", "scheduled_retry"]);

/** The server's own address on this machine; undefined outside a server. Source: Paperclip 2026.916.1. */
function paperclipApiUrl(environment: NodeJS.ProcessEnv): string | undefined {
  const port = environment.PAPERCLIP_LISTEN_PORT;
  if (port) return `http://${reachable(environment.PAPERCLIP_LISTEN_HOST)}:${port}`;
  const known = environment.PAPERCLIP_RUNTIME_API_URL || environment.PAPERCLIP_API_URL;
  return known ? known.replace(/\/+$/, "") : undefined;
}

/** A response: its status, and its body if that was JSON. Status 0: there was none. */
interface Answer {
  status: number;
  body: JsonObject;
}

/** No answer, or a failure of Paperclip's own: the same request may succeed later. */
export function isUnanswered({ status }: Answer): boolean {
  return status === 0 || status >= 500;
}

/** Sends requests with one token, or without any. Without an address every request has the answer 404. */
export class PaperclipApi {
  readonly #base = paperclipApiUrl(process.env);
  readonly #token: string | undefined;

  constructor(token: string | undefined) {
    this.#token = token;
  }

  run(runId: string): Promise<Answer> {
    return this.request(`/heartbeat-runs/${encodeURIComponent(runId)}`);
  }

  /** Sends a request; without a `body` a GET, with one a POST unless `method` says otherwise. Never rejects. */
  async request(path: string, body?: unknown, method = body === undefined ? "GET" : "POST"): Promise<Answer> {
    if (this.#base === undefined) return { status: 404, body: {} };
    try {
      const response = await fetch(`${this.#base}/api${path}`, {
        method,
        headers: {
          ...(this.#token ? { Authorization: `Bearer ${this.#token}` } : {}),
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        },
        body: body === undefined ? undefined : JSON.stringify(body),
        signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
        redirect: "error",
      });
      const received: unknown = await response.json().catch(() => ({}));
      return { status: response.status, body: Array.isArray(received) ? { list: received } : objectOf(received) };
    } catch {
      return { status: 0, body: {} };
    }
  }
}

function reachable(host: string | undefined): string {
  if (!host || host === "0.0.0.0" || host === "::") return "127.0.0.1";
  return host.includes(":") ? `[${host}]` : host;
}
