"""OpenTelemetry traces of runs: switched on by OpenTelemetry's own variables, and put into a start by hand.

The start of a run is a raw request, which Temporal's interceptor does not see; see `agent_runs.client.attach`. Nothing
of OpenTelemetry is imported here: without its variables a process never loads it.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from temporalio.api.common.v1 import Header
from temporalio.client import Client, Interceptor

if TYPE_CHECKING:  # which reads these variables
    from agent_runs.client.settings import ClientSettings

DISABLED: Final = "OTEL_SDK_DISABLED"
EXPORTER: Final = "OTEL_TRACES_EXPORTER"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TIMEOUTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")

_HTTP_URL: Final = re.compile(r"https?://[^\s/?#]+\S*")
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class UnusableTracing(Exception):
    """An `OTEL_*` variable asks for something that cannot be done. One line per variable with the remedy."""


def is_traced(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's variables ask for traces: an endpoint or the exporter `otlp` is named.

    Raises:
        UnusableTracing: they ask for another exporter or protocol, or hold something that is no address or number.
    """
    present = {name: text.strip() for name, text in environment.items() if name.startswith("OTEL_") and text.strip()}
    exporter = present.get(EXPORTER, "")
    if present.get(DISABLED, "").lower() == "true" or exporter == "none":
        return False
    if not exporter and not present.keys() & set(ENDPOINTS):
        return False
    wrong = [f"{EXPORTER}: must be otlp or none"] if exporter not in ("", "otlp") else []
    wrong += _wrong(present, PROTOCOLS, re.compile("http/protobuf"), "must be http/protobuf, or unset")
    wrong += _wrong(present, ENDPOINTS, _HTTP_URL, "must be an http or https URL, such as http://collector:4318")
    wrong += _wrong(present, TIMEOUTS, _NUMBER, "must be a number")
    if wrong:
        raise UnusableTracing("\n".join(wrong))
    return True


def _wrong(present: Mapping[str, str], names: Sequence[str], expected: re.Pattern[str], remedy: str) -> list[str]:
    return [f"{name}: {remedy}" for name in names if name in present and not expected.fullmatch(present[name])]


def interceptors(settings: "ClientSettings", program: str) -> list[Interceptor]:
    """For `Client.connect`, and thereby for the workers of that client."""
    if not settings.traced:
        return []
    from agent_runs.client.spans import exporting_tracing  # noqa: PLC0415 - a second that others do without

    return [exporting_tracing(program)]


async def close() -> None:
    if (spans := sys.modules.get("agent_runs.client.spans")) is not None:
        await spans.close()


def start_header(client: Client) -> Header | None:
    """The header of a start: it carries the caller's current span into the workflow."""
    spans = sys.modules.get("agent_runs.client.spans")
    return None if spans is None else spans.start_header(client)
