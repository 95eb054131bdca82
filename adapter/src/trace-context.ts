/**
 * The trace that the host works in, if its process has an OpenTelemetry tracer: put into a start, so that the run's spans
 * belong to it. Without one the worker begins a trace, whose id is Temporal's run id.
 */
import common, { type Headers } from "@temporalio/common";

/** Where @opentelemetry/api of any 1.x version keeps what an SDK has registered; there is nothing to import then. */
const API = Symbol.for("opentelemetry.js.api.1");
/** The header of Temporal's own interceptors. */
const HEADER = "_tracer-data";
/** Not the host's baggage, which may hold anything: histories last. */
const PASSED_ON = ["traceparent", "tracestate"];

type Carrier = Record<string, string>;
interface OpenTelemetry {
  context?: { active(): unknown };
  propagation?: {
    inject(context: unknown, carrier: Carrier, setter: { set(to: Carrier, key: string, value: string): void }): void;
  };
}

/** Headers of a start, none without a current span. */
export function traceHeaders(): Headers {
  const { context, propagation } = (globalThis as { [API]?: OpenTelemetry })[API] ?? {};
  if (context === undefined || propagation === undefined) return {};
  const carrier: Carrier = {};
  const set = (to: Carrier, key: string, value: string) => {
    if (PASSED_ON.includes(key)) to[key] = value;
  };
  try {
    propagation.inject(context.active(), carrier, { set });
  } catch {
    return {}; // a tracer that fails is no reason to start no run
  }
  return carrier.traceparent === undefined ? {} : { [HEADER]: common.defaultPayloadConverter.toPayload(carrier) };
}
