/**
 * Where Temporal is and how to log in there: Temporal's own environment configuration, read as the worker reads it.
 *
 * `TEMPORAL_*` variables have priority over the profile `TEMPORAL_PROFILE` of the TOML file `TEMPORAL_CONFIG_FILE`.
 * Refused here is what the SDK ignores or misreads: a missing file, a flag that is neither true nor false, half a client
 * certificate, a server that is not verified. An empty variable is absent. Source: @temporalio/envconfig 1.24.
 */
import { existsSync, readFileSync } from "node:fs";
import type { ConnectionOptions } from "@temporalio/client";
import { type ClientConfigTLS, type ConfigDataSource, loadClientConfigProfile } from "@temporalio/envconfig";

/** A Temporal namespace and the login for it. It holds secrets. */
export interface TemporalServer {
  readonly address: string;
  readonly namespace: string;
  /** False: none; true: with the trusted certificates of this Node; else those of the profile. */
  readonly tls: NonNullable<ConnectionOptions["tls"]>;
  readonly apiKey?: string;
  /** gRPC headers of each call (`TEMPORAL_GRPC_META_*`). */
  readonly metadata?: Readonly<Record<string, string>>;
}

export interface Problem {
  readonly field: string;
  readonly remedy: string;
}

type Variables = Readonly<Record<string, string>>;

const PREFIX = "TEMPORAL_";
const FILE = "TEMPORAL_CONFIG_FILE";
const TLS = "TEMPORAL_TLS";
const UNVERIFIED = "TEMPORAL_TLS_DISABLE_HOST_VERIFICATION";
/** By which the SDK finds its default file. */
const FOLDERS = ["HOME", "XDG_CONFIG_HOME", "APPDATA"];
const FLAGS = ["true", "1", "false", "0"];
const HOST_AND_PORT = /^(\[[0-9A-Fa-f:.]+\]|[^\s:/[\]]+):[0-9]{1,5}$/;

export const ADDRESS_REMEDY = "must be HOST:PORT, such as temporal.example:7233";

/** Whether it can be an address of Temporal. */
export function isAddress(text: string): boolean {
  return HOST_AND_PORT.test(text);
}

/** The server that the environment names; what is wrong is reported, never its value. */
export function temporalServer(environment: NodeJS.ProcessEnv, report: (problem: Problem) => void): TemporalServer {
  const variables = setVariables(environment);
  const problems = wrongVariables(variables);
  problems.forEach(report);
  const server = problems.length === 0 ? serverOf(variables, report) : undefined;
  return server ?? { address: "127.0.0.1:7233", namespace: "default", tls: false };
}

/** For an address that an agent's configuration names: key, certificate and headers are for the configured Temporal only. */
export function withoutLogin(server: TemporalServer, address: string): TemporalServer {
  const { namespace, tls } = server;
  const trusted = typeof tls === "object" ? { serverRootCACertificate: tls.serverRootCACertificate } : tls;
  return { address, namespace, tls: trusted };
}

function setVariables(environment: NodeJS.ProcessEnv): Variables {
  const variables: Record<string, string> = {};
  for (const [name, value] of Object.entries(environment)) {
    const text = value?.trim();
    if (text && (name.startsWith(PREFIX) || FOLDERS.includes(name))) variables[name] = text;
  }
  for (const name of [TLS, UNVERIFIED]) {
    if (variables[name] !== undefined) variables[name] = variables[name].toLowerCase();
  }
  return variables;
}

function wrongVariables(variables: Variables): Problem[] {
  const problems = [TLS, UNVERIFIED]
    .filter((name) => !FLAGS.includes(variables[name] ?? "true"))
    .map((field) => ({ field, remedy: "must be true or false" }));
  if (["true", "1"].includes(variables[UNVERIFIED] ?? "")) {
    const remedy = "must be unset: the server's certificate is always verified, by TEMPORAL_TLS_SERVER_CA_CERT_PATH";
    problems.push({ field: UNVERIFIED, remedy });
  }
  const file = variables[FILE];
  if (file !== undefined && !existsSync(file))
    problems.push({ field: FILE, remedy: "must be a TOML file that exists" });
  return problems;
}

function serverOf(variables: Variables, report: (problem: Problem) => void): TemporalServer | undefined {
  try {
    const profile = loadClientConfigProfile({ configFileStrict: true, overrideEnvVars: { ...variables } });
    const address = profile.address ?? "127.0.0.1:7233";
    if (!isAddress(address)) throw new Wrong(`${PREFIX}ADDRESS`, ADDRESS_REMEDY);
    const tls = profile.tls === undefined ? profile.apiKey !== undefined : tlsOf(profile.tls);
    const { apiKey, grpcMeta: metadata } = profile;
    return { address, namespace: profile.namespace ?? "default", tls, apiKey, metadata };
  } catch (error) {
    report(problemOf(error, variables));
    return undefined;
  }
}

/** The SDK's own errors quote the file, which may hold secrets. */
function problemOf(error: unknown, variables: Variables): Problem {
  if (error instanceof Wrong) return { field: error.field, remedy: error.message };
  const message = error instanceof Error ? error.message : "";
  if (message.startsWith("Profile")) return { field: "TEMPORAL_PROFILE", remedy: "must name a profile of the file" };
  const both = /^Cannot specify both (\w+)_path/.exec(message)?.[1]?.toUpperCase();
  if (both !== undefined) {
    return { field: `TEMPORAL_TLS_${both}_PATH`, remedy: `must be unset if TEMPORAL_TLS_${both}_DATA is set` };
  }
  const keys = /^Validation error: key\(s\) unrecognized.*?: ([\w, -]{1,200})$/.exec(message)?.[1];
  const remedy = keys === undefined ? "must be a readable TOML file with profiles" : `must not have the key ${keys}`;
  return { field: FILE, remedy: variables[FILE] === undefined ? `${remedy} (it is the default file)` : remedy };
}

class Wrong extends Error {
  readonly field: string;
  constructor(field: string, remedy: string) {
    super(remedy);
    this.field = field;
  }
}

function tlsOf(profile: ClientConfigTLS): TemporalServer["tls"] {
  if (profile.disabled) return false;
  const crt = pem("CLIENT_CERT", profile.clientCert, "CERTIFICATE");
  const key = pem("CLIENT_KEY", profile.clientKey, "PRIVATE KEY");
  if ((crt === undefined) !== (key === undefined)) {
    const missing = crt === undefined ? "CLIENT_CERT" : "CLIENT_KEY";
    throw new Wrong(`TEMPORAL_TLS_${missing}_PATH`, "must be set: a client needs a certificate and its key");
  }
  return {
    serverNameOverride: profile.serverName,
    serverRootCACertificate: pem("SERVER_CA_CERT", profile.serverCACert, "CERTIFICATE"),
    clientCertPair: crt && key && { crt, key },
  };
}

function pem(name: string, source: ConfigDataSource | undefined, kind: string): Uint8Array | undefined {
  if (source === undefined) return undefined;
  const field = `TEMPORAL_TLS_${name}_${"path" in source ? "PATH" : "DATA"}`;
  const content = contentOf(source);
  if (content === undefined) throw new Wrong(field, "must be a file that this process can read");
  if (!content.includes(`${kind}-----`)) throw new Wrong(field, `must hold a PEM block ${kind}`);
  return content;
}

function contentOf(source: ConfigDataSource): Buffer | undefined {
  if (!("path" in source)) return Buffer.from(source.data as Uint8Array);
  try {
    return readFileSync(source.path);
  } catch {
    return undefined;
  }
}
