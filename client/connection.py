"""Connects to Temporal the way every part of this project must: pydantic contracts, bounded patience."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import Runtime
from temporalio.service import RPCError

from client.settings import ClientSettings

DRAIN: Final = 0.3
"""Seconds that a process waits before its loop ends. Without them it aborts in a quarter of cases, because the
SDK's native threads still call into Python. Source: temporalio/sdk-python#300; measured 3 of 12 and 0 of 12."""

Result = TypeVar("Result")


class TemporalUnreachable(Exception):
    """No Temporal server answers at the configured address. The text names it and the remedy."""


async def connect(settings: ClientSettings, runtime: Runtime | None = None) -> Client:
    """A client for the configured namespace.

    Raises:
        TemporalUnreachable: nobody answers, or the key is refused.
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
    except (RuntimeError, RPCError, ValueError) as error:  # ValueError: an address that is none
        raise TemporalUnreachable(
            f"Temporal does not answer at {settings.temporal_address} ({_cause(error)}). "
            "Start it (`./dev dev` starts a whole stack) or set AGENT_RUNS_TEMPORAL_ADDRESS."
        ) from None


def _cause(error: Exception) -> str:
    """The operating system's own words, out of the native client's nested ones."""
    said = re.findall(r'(?:message|error): "([^"]{1,100})"', str(error))
    return said[-1] if said else str(error)[:100]


def run_to_end(main: Callable[[], Awaitable[Result]]) -> Result:
    """`asyncio.run` for every entry point that used a Temporal client: ends cleanly instead of aborting."""

    async def drained() -> Result:
        try:
            return await main()
        finally:
            await asyncio.sleep(DRAIN)

    return asyncio.run(drained())
