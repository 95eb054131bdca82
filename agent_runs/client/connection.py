"""Connects to Temporal with the project's data converter, and runs an event loop that used a Temporal client."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import Runtime
from temporalio.service import RPCError

from agent_runs.client.settings import ClientSettings

EXIT_DELAY_SEC: Final = 0.3
"""Wait before the event loop of a process ends. Without it one process in four aborts, because the SDK's native threads
still call into Python. Source: temporalio/sdk-python#300; measured 3 of 12 without and 0 of 12 with it."""

Result = TypeVar("Result")


class TemporalUnreachable(Exception):
    """No Temporal server answers at the configured address, or it refuses the API key. The text names the remedy."""


async def connect(settings: ClientSettings, runtime: Runtime | None = None) -> Client:
    """Connect a client to the configured namespace.

    Raises:
        TemporalUnreachable: no server answers, or it refuses the API key.
    """
    try:
        return await Client.connect(
            settings.temporal_address,
            namespace=settings.temporal_namespace,
            api_key=settings.temporal_api_key.get_secret_value() if settings.temporal_api_key else None,
            tls=settings.temporal_tls,
            data_converter=pydantic_data_converter,
            runtime=runtime,
        )
    except (RuntimeError, RPCError, ValueError) as error:  # ValueError: not an address
        raise TemporalUnreachable(
            f"Temporal does not answer at {settings.temporal_address} ({_cause(error)}). "
            "Start it (`./dev dev` starts a whole stack) or set AGENT_RUNS_TEMPORAL_ADDRESS."
        ) from None


def _cause(error: Exception) -> str:
    """The innermost message, such as the operating system's, out of the native client's nested error."""
    messages = re.findall(r'(?:message|error): "([^"]{1,100})"', str(error))
    return messages[-1] if messages else str(error)[:100]


def run_to_end(main: Callable[[], Awaitable[Result]]) -> Result:
    """Run a coroutine as `asyncio.run` does, for every entry point that uses a Temporal client; see EXIT_DELAY_SEC."""

    async def delayed() -> Result:
        try:
            return await main()
        finally:
            await asyncio.sleep(EXIT_DELAY_SEC)

    return asyncio.run(delayed())
