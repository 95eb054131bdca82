/**
 * The trace that the host works in, if its process has an OpenTelemetry tracer: put into a start, so that the run's spans
 * belong to it. Without one the worker begins a trace, whose id is Temporal's run id.
 */
import common, { type Headers } from "@temporalio/common";

/** Where @opentelemetry/api of any 1.x version keeps what an SDK has registered; there is nothing to import then. */
const API = Symbol.for("opentelemetry.js.api.1");
/** The header of Temporal's own interceptors. */
const HEADER = "_tracer-data";

interface OpenTelemetry {
  context?: { active(): unknown };
  propagation?: { inject(context: unknown, carrier: Record<string, string>): void };
}

/** Headers of a start, none without a current span. */
export function traceHeaders(): Headers {
  const { context, propagation } = (globalThis as { [API]?: OpenTelemetry })[API] ?? {};
  if (context === undefined || propagation === undefined) return {};
  const carrier: Record<string, string> = {};
  try {
    propagation.inject(context.active(), carrier);
  } catch {
    return {}; // a tracer that fails is no reason to start no run
  }
  // not the host's baggage, which may hold anything: histories last
  const { traceparent, tracestate } = carrier;
  if (traceparent === undefined) return {};
  return { [HEADER]: common.defaultPayloadConverter.toPayload({ traceparent, tracestate }) };
}
