/** A stand-in for the part of Paperclip's HTTP API that the adapter asks: answers from what the test has put in. */

import { createServer } from "node:http";
import { listening } from "./stack.ts";

type Body = { [name: string]: unknown };

export interface FakeApi {
  runs: Map<string, Body>;
  issues: Map<string, Body>;
  /** The agent that asks. */
  self?: Body;
  /** Of every issue. */
  comments: Body[];
  interactions: Body[];
  /** What was posted: path and body. */
  posts: { path: string; body: Body }[];
  /** Every request's method and path, in order. */
  requests: string[];
  tokens: Set<string | undefined>;
  answers: { status: number; body: Body };
  /** So many requests that change something are carried out and lose their answer. */
  lostAnswers: number;
  stop(): Promise<void>;
}

/** Starts it and sets the environment variable by which the adapter finds a real server. */
export async function paperclipApi(): Promise<FakeApi> {
  const server = createServer(async (request, response) => {
    const path = (request.url ?? "").replace(/^\/api/, "");
    api.requests.push(`${request.method} ${path}`);
    api.tokens.add(request.headers.authorization);
    let text = "";
    for await (const piece of request) text += piece;
    const change = { POST: post, PATCH: patch }[request.method ?? ""];
    const { status, body } = change ? change(path, JSON.parse(text)) : get(path);
    if (change && api.lostAnswers-- > 0) return void response.destroy();
    response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
  });
  const api: FakeApi = {
    runs: new Map(),
    issues: new Map(),
    comments: [],
    interactions: [],
    posts: [],
    requests: [],
    tokens: new Set(),
    answers: { status: 202, body: {} },
    lostAnswers: 0,
    async stop() {
      delete process.env.PAPERCLIP_API_URL;
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  function get(path: string): { status: number; body: unknown } {
    const [, kind, id = "", list] = path.split("?")[0]?.split("/") ?? [];
    if (kind === "companies" && list === "heartbeat-runs") return { status: 200, body: [...api.runs.values()] };
    if (kind === "issues" && list === "comments") return { status: 200, body: api.comments };
    if (kind === "issues" && list === "interactions") return { status: 200, body: api.interactions };
    if (path === "/agents/me" && api.self) return { status: 200, body: api.self };
    const found = (kind === "heartbeat-runs" ? api.runs : api.issues).get(id);
    return found ? { status: 200, body: found } : { status: 404, body: { error: "not found" } };
  }
  function post(path: string, body: Body) {
    api.posts.push({ path, body });
    return api.answers;
  }
  function patch(path: string, body: Body) {
    const id = path.split("/")[2] ?? "";
    const permitted = api.answers.status < 300;
    if (permitted) api.issues.set(id, { ...api.issues.get(id), ...body });
    return { status: permitted ? 200 : api.answers.status, body: {} };
  }
  process.env.PAPERCLIP_API_URL = `http://127.0.0.1:${await listening(server)}`;
  return api;
}
