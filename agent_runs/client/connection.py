"""Connects to Temporal with the project's data converter, and runs an event loop that used a Temporal client."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

from temporalio.api.failure.v1 import Failure
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError

from agent_runs.client.settings import ClientSettings
from agent_runs.client.tracing import close, interceptors
from agent_runs.contracts.errors import FAILURES

EXIT_DELAY_SEC: Final = 0.3
"""Wait before the event loop of a process ends. Without it one process in four aborts, because the SDK's native threads
call into a Python that ends. Source: temporalio/sdk-python#300; measured 3 of 12 without and 0 of 12 with it."""

Result = TypeVar("Result")


class FailureConverter(DefaultFailureConverter):
    """Leaves out the stacks of a named failure and of its causes. Only an error without a name needs one."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        if failure.application_failure_info.type not in FAILURES:
            return
        each = failure
        each.ClearField("stack_trace")
        while each.HasField("cause"):
            each = each.cause
            each.ClearField("stack_trace")


DATA_CONVERTER: Final = replace(pydantic_data_converter, failure_converter_class=FailureConverter)


class TemporalUnreachable(Exception):
    """No Temporal server answers at the configured address, or it refuses the API key. The text names the remedy."""


class TemporalAway(TemporalUnreachable):
    """It may answer later."""


async def connect(settings: ClientSettings, runtime: Runtime | None = None, program: str = "agent-runs") -> Client:
    """Connect a client to the configured namespace.

    Args:
        program: the service name in traces, unless `OTEL_SERVICE_NAME` names another.

    Raises:
        TemporalAway: no server answers, or it refuses the API key.
        TemporalUnreachable: the address is not valid, or the server refused a request.
    """
    server = settings.temporal
    try:
        return await Client.connect(
            server.address,
            namespace=server.namespace,
            api_key=server.api_key.get_secret_value() if server.api_key else None,
            tls=server.tls,
            rpc_metadata=server.metadata,
            data_converter=DATA_CONVERTER,
            runtime=runtime,
            interceptors=interceptors(settings, program),
        )
    except (RuntimeError, RPCError, ValueError) as error:  # ValueError: not an address
        kind = TemporalAway if isinstance(error, RuntimeError) else TemporalUnreachable
        raise kind(
            f"Temporal does not answer at {server.address} ({_cause(error)}). "
            "Start it (`./dev dev` starts a whole stack) or set TEMPORAL_ADDRESS and, where it needs them, "
            "TEMPORAL_TLS and TEMPORAL_API_KEY."
        ) from None


def _cause(error: Exception) -> str:
    """The innermost message, such as the operating system's, out of the native client's nested error."""
    if "InvalidContentType" in str(error):
        return "the server there does not speak TLS: unset TEMPORAL_TLS"
    if refused := re.search(r"InvalidData, error: (\w+)(?:\((\w+))?", str(error)):
        return "TLS failed: " + " ".join(part for part in refused.groups() if part)
    messages = re.findall(r'(?:message|error): "([^"]{1,100})"', str(error))
    return messages[-1] if messages else str(error)[:100]


def log_to_stderr() -> None:
    """Leave stdout to the program's own output: by default the SDK's native part logs there, in colours.

    Python's logging prints the lines instead, on stderr unless it is configured otherwise.
    """
    forwarded = LogForwardingConfig(logging.getLogger("temporalio"))
    logs = LoggingConfig(filter=LoggingConfig.default.filter, forwarding=forwarded)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logs)))


def run_to_end(main: Callable[[], Awaitable[Result]], *, exit_delay_sec: float = EXIT_DELAY_SEC) -> Result:
    """Run a coroutine as `asyncio.run` does, for every entry point that uses a Temporal client.

    Args:
        exit_delay_sec: see EXIT_DELAY_SEC; 0 for a process that ends without ending Python.
    """

    async def delayed() -> Result:
        try:
            return await main()
        finally:
            await close()
            await asyncio.sleep(exit_delay_sec)

    return asyncio.run(delayed())
