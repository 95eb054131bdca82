/**
 * Paperclip's own HTTP API, as its process reaches itself: for the few questions that the adapter interface does not
 * answer. Every call is bounded; none rejects with what was sent.
 */

const ANSWER_MS = 5000;

/** The server's own address on this machine; undefined outside a server. Source: Paperclip 2026.916.1. */
export function hostApi(environment: NodeJS.ProcessEnv): string | undefined {
  const port = environment.PAPERCLIP_LISTEN_PORT;
  if (port) return `http://${reachable(environment.PAPERCLIP_LISTEN_HOST)}:${port}`;
  const known = environment.PAPERCLIP_RUNTIME_API_URL || environment.PAPERCLIP_API_URL;
  return known ? known.replace(/\/+$/, "") : undefined;
}

/** An answer: its status, and its body if that was JSON. Status 0: there was none. */
export interface Answer {
  status: number;
  body: { [name: string]: unknown };
}

export class HostApi {
  readonly #base: string;
  readonly #token: string | undefined;

  constructor(base: string, token: string | undefined) {
    this.#base = base;
    this.#token = token;
  }

  /** Asks; with a `body` by POST. Never rejects. */
  async ask(path: string, body?: unknown): Promise<Answer> {
    try {
      const response = await fetch(`${this.#base}/api${path}`, {
        method: body === undefined ? "GET" : "POST",
        headers: {
          ...(this.#token ? { Authorization: `Bearer ${this.#token}` } : {}),
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        },
        body: body === undefined ? undefined : JSON.stringify(body),
        signal: AbortSignal.timeout(ANSWER_MS),
        redirect: "error",
      });
      const told: unknown = await response.json().catch(() => ({}));
      return { status: response.status, body: Array.isArray(told) ? { list: told } : objectOf(told) };
    } catch {
      return { status: 0, body: {} };
    }
  }
}

export function objectOf(value: unknown): { [name: string]: unknown } {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? { ...value } : {};
}

function reachable(host: string | undefined): string {
  if (!host || host === "0.0.0.0" || host === "::") return "127.0.0.1";
  return host.includes(":") ? `[${host}]` : host;
}
