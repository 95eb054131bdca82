"""One run cannot fill the transcript store, and only its owner reads it."""

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.identity import RunKey
from tests.runs.system import System, attempt_key, open_system
from tests.support.sqlite import sqlite_store

MIB = 1024 * 1024
FLOOD = f"cat > /dev/null; trap '' TERM; yes {'x' * 1000}"
"""It goes on after SIGTERM, too."""


@pytest.fixture(scope="module")
async def small(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A system that stores 2 MiB of each run."""
    async with open_system(temporal, tmp_path_factory.mktemp("small")) as opened:
        system = opened.changed(max_output_mib=2)
        async with system.worker():
            yield system


async def test_an_agent_that_writes_without_end_is_stopped_by_name_and_others_never_notice(small: System) -> None:
    flood, other = small.agent(FLOOD), small.agent("cat > /dev/null; for n in $(seq 100); do echo $n; done")
    flood["config"]["graceSec"] = 1
    ticket = await small.start(flood)
    await small.outcome(other)
    assert await small.stdout(other) == [b"%d" % number for number in range(1, 101)]
    outcome = await outcome_at_close(ticket.handle(small.temporal))
    assert outcome.error_code == "output_quota_exceeded"
    stored = await small.store.stored_bytes(attempt_key(flood).run)
    assert 2 * MIB < stored < 8 * MIB
    assert outcome.receipt is not None  # although the agent was killed
    rows = await small.store.read(attempt_key(flood), limit=100_000, max_bytes=16 * MIB)
    assert {line.data for line in rows[:-1]} == {b"x" * 1000}
    assert (rows[-1].stream, rows[-1].sequence) == ("gap", rows[-2].sequence + 1)


async def test_lines_without_text_count_too(small: System) -> None:
    outcome = await small.outcome(small.agent("cat > /dev/null; yes '' | head -n 120000; sleep 3600"))
    assert outcome.error_code == "output_quota_exceeded"


async def test_the_receipt_of_such_a_run_has_a_gap_of_unknown_size(small: System) -> None:
    raw = small.agent(f"cat > /dev/null; trap 'exit 143' TERM; while :; do echo {'x' * 1000}; done")
    outcome = await small.outcome(raw)
    assert outcome.error_code == "output_quota_exceeded"
    assert outcome.receipt is not None
    assert outcome.receipt.state == "differs"
    (gap,) = outcome.receipt.gaps
    (last, named) = (await small.store.read(attempt_key(raw), limit=100_000, max_bytes=16 * MIB))[-2:]
    assert (gap.after_sequence, gap.frames) == (last.sequence, None)
    assert named.stream == "gap"


async def test_only_its_owner_reads_the_transcript_store(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        await store.attempts(RunKey.named("ada~run-1"))
        assert {stat.S_IMODE(each.stat().st_mode) for each in os.scandir(tmp_path)} == {0o600}
