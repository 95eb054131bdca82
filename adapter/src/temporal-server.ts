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
import { ConfigurationError } from "./errors.ts";

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

type Variables = Readonly<Record<string, string>>;

const PREFIX = "TEMPORAL_";
const FILE = "TEMPORAL_CONFIG_FILE";
const UNVERIFIED = "TEMPORAL_TLS_DISABLE_HOST_VERIFICATION";
const FLAGS = ["TEMPORAL_TLS", UNVERIFIED];
/** By which the SDK finds its default file. */
const FOLDERS = ["HOME", "XDG_CONFIG_HOME", "APPDATA"];
const wrong = (field: string, remedy: string) => new ConfigurationError({ field, remedy });
const HOST_AND_PORT = /^(\[[0-9A-Fa-f:.]+\]|[^\s:/[\]]+):[0-9]{1,5}$/;

/** The server that the environment names. Throws `ConfigurationError` for the first one that is wrong. */
export function temporalServer(environment: NodeJS.ProcessEnv): TemporalServer {
  const profile = profileOf(variablesIn(environment));
  const { address = "127.0.0.1:7233", namespace = "default", apiKey, grpcMeta: metadata } = profile;
  if (!HOST_AND_PORT.test(address)) throw wrong("TEMPORAL_ADDRESS", "must be HOST:PORT, such as temporal.example:7233");
  return { address, namespace, tls: profile.tls ? tlsOf(profile.tls) : apiKey !== undefined, apiKey, metadata };
}

function variablesIn(environment: NodeJS.ProcessEnv): Variables {
  const named = Object.entries(environment).filter(([name]) => name.startsWith(PREFIX) || FOLDERS.includes(name));
  const texts = named.map(([name, value = ""]) => [name, FLAGS.includes(name) ? value.toLowerCase() : value] as const);
  return Object.fromEntries(texts.map(([name, text]) => [name, text.trim()]).filter(([, text]) => text));
}

function profileOf(variables: Variables) {
  const wrongFlag = FLAGS.find((name) => !["true", "1", "false", "0"].includes(variables[name] ?? "true"));
  if (wrongFlag !== undefined) throw wrong(wrongFlag, "must be true or false");
  if (["true", "1"].includes(variables[UNVERIFIED] ?? "")) {
    const remedy = "must be unset: the server's certificate is always verified, by TEMPORAL_TLS_SERVER_CA_CERT_PATH";
    throw wrong(UNVERIFIED, remedy);
  }
  const file = variables[FILE];
  if (file !== undefined && !existsSync(file)) throw wrong(FILE, "must be a TOML file that exists");
  try {
    return loadClientConfigProfile({ configFileStrict: true, overrideEnvVars: { ...variables } });
  } catch (error) {
    throw wrongVariable(error instanceof Error ? error.message : "", file);
  }
}

/** The SDK's own messages quote the file, which may hold secrets. */
function wrongVariable(message: string, file: string | undefined): ConfigurationError {
  if (message.startsWith("Profile")) return wrong("TEMPORAL_PROFILE", "must name a profile of the file");
  const both = /^Cannot specify both (\w+)_path/.exec(message)?.[1]?.toUpperCase();
  if (both) return wrong(`TEMPORAL_TLS_${both}_PATH`, `must be unset if TEMPORAL_TLS_${both}_DATA is set`);
  const keys = /^Validation error: key\(s\) unrecognized.*?: ([\w, -]{1,200})$/.exec(message)?.[1];
  const remedy = keys === undefined ? "must be a readable TOML file with profiles" : `must not have the key ${keys}`;
  return wrong(FILE, file === undefined ? `${remedy} (it is the default file)` : remedy);
}

function tlsOf(profile: ClientConfigTLS): TemporalServer["tls"] {
  if (profile.disabled) return false;
  const crt = pem("CLIENT_CERT", profile.clientCert, "CERTIFICATE");
  const key = pem("CLIENT_KEY", profile.clientKey, "PRIVATE KEY");
  const missing = crt && !key ? "CLIENT_KEY" : key && !crt && "CLIENT_CERT";
  if (missing) throw wrong(`TEMPORAL_TLS_${missing}_PATH`, "must be set: a client needs a certificate and its key");
  return {
    serverNameOverride: profile.serverName,
    serverRootCACertificate: pem("SERVER_CA_CERT", profile.serverCACert, "CERTIFICATE"),
    clientCertPair: crt && key && { crt, key },
  };
}

function pem(name: string, source: ConfigDataSource | undefined, kind: string): Buffer | undefined {
  if (source === undefined) return undefined;
  const field = `TEMPORAL_TLS_${name}_${"path" in source ? "PATH" : "DATA"}`;
  try {
    const content = "path" in source ? readFileSync(source.path) : Buffer.from(source.data);
    if (content.includes(`${kind}-----`)) return content;
  } catch {
    throw wrong(field, "must be a file that this process can read");
  }
  throw wrong(field, `must hold a PEM block ${kind}`);
}
