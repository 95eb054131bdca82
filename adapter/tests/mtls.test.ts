/** Temporal's own variables for certificates log the plugin in, against a real server that asks for a certificate. */
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { mkdtempSync, readFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createServer, type Server } from "node:tls";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import { settingsFrom } from "../src/settings.ts";
import { disconnect, temporalFor } from "../src/temporal.ts";
import { type DevServer, devServer, listening, PYTHON } from "./support/stack.ts";

const CERTIFICATES = `
import sys, trustme
ca = trustme.CA()
ca.cert_pem.write_to_path(sys.argv[1] + "/ca.pem")
for name in ("temporal.internal", "plugin.internal"):
    issued = ca.issue_cert(name)
    issued.private_key_pem.write_to_path(f"{sys.argv[1]}/{name}.key")
    issued.cert_chain_pems[0].write_to_path(f"{sys.argv[1]}/{name}.pem")
`;
let temporal: DevServer;
let proxy: Server;
let variables: Record<string, string>;

beforeAll(async () => {
  const folder = mkdtempSync(join(tmpdir(), "mtls-"));
  await promisify(execFile)(PYTHON, ["-c", CERTIFICATES, folder]);
  temporal = await devServer();
  proxy = proxyOf(temporal.address, folder);
  variables = {
    TEMPORAL_ADDRESS: `127.0.0.1:${await listening(proxy)}`,
    TEMPORAL_TLS_SERVER_CA_CERT_PATH: join(folder, "ca.pem"),
    TEMPORAL_TLS_SERVER_NAME: "temporal.internal",
    TEMPORAL_TLS_CLIENT_CERT_PATH: join(folder, "plugin.internal.pem"),
    TEMPORAL_TLS_CLIENT_KEY_PATH: join(folder, "plugin.internal.key"),
  };
});
afterAll(async () => {
  await disconnect();
  proxy.close();
  await temporal.stop();
});

function proxyOf(target: string, folder: string): Server {
  const [host, port] = target.split(":");
  const read = (name: string) => readFileSync(join(folder, name));
  const own = { key: read("temporal.internal.key"), cert: read("temporal.internal.pem"), ca: read("ca.pem") };
  return createServer({ ...own, requestCert: true, rejectUnauthorized: true, ALPNProtocols: ["h2"] }, (socket) => {
    const ours = connect(Number(port), host);
    socket.on("error", () => ours.destroy());
    ours.on("error", () => socket.destroy());
    socket.pipe(ours).pipe(socket);
  });
}

async function namespaceSeenWith(environment: Record<string, string>): Promise<string | null | undefined> {
  const found = temporalFor({ ...settingsFrom(environment), taskQueue: randomUUID() });
  const describe = () => found.workflowService.describeNamespace({ namespace: "default" });
  return (await found.callOnce(describe, { timeout: 60_000 })).namespaceInfo?.name;
}

it("logs in with a client certificate", async () => {
  expect(await namespaceSeenWith(variables)).toBe("default");
});

it("is refused without it", async () => {
  const { TEMPORAL_TLS_CLIENT_CERT_PATH: _, TEMPORAL_TLS_CLIENT_KEY_PATH: __, ...without } = variables;
  await expect(namespaceSeenWith(without)).rejects.toThrow();
});
