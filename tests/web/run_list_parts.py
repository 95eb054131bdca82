"""Shared by the tests of the list of runs: a service with operators, and runs as from Temporal."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from agent_runs.client.runs import RunSummary
from agent_runs.contracts.identity import RunKey
from agent_runs.transcript.usage import StoredUsage
from tests.web.parts import Site, key, line, run_info, site, text_event

TOKEN = "operator-token-0123456789abcdefghij"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def run(number: int, phase: str = "running", **more: object) -> RunSummary:
    """A run as Temporal lists it, which began a minute ago."""
    changes = {
        "key": RunKey(agent_id=f"agent-{number}", company_id="acme", run_id=f"run-{number}"),
        "phase": phase,
        "open": phase == "running",
        "started_at": datetime.now(UTC) - timedelta(minutes=1),
        "ended_at": None if phase == "running" else datetime.now(UTC),
        **more,
    }
    return replace(run_info().run, **changes)  # type: ignore[arg-type]  # fields of RunSummary


def usage(last_output: str = "I look around", cost: str | None = "0.0125") -> StoredUsage:
    price = None if cost is None else Decimal(cost)
    return StoredUsage(1200, 5600, 34, 2, price, "fake/model", last_output)


async def store_run(here: Site, number: int, used: StoredUsage | None = None) -> None:
    """One line and the usage of a run."""
    await here.store.append(key(run=f"agent-{number}~run-{number}"), [line(1, text_event("x"))], usage=used or usage())


@asynccontextmanager
async def operated(folder: Path, **more: object) -> AsyncIterator[Site]:
    """A service with an operator token."""
    file = folder / "operator-token"
    file.write_text(f"{TOKEN}\n")
    async with site(folder, 0, operator_token_file=file, **more) as here:
        yield here
