"""What a line costs a transcript store in PostgreSQL: CPU of both sides, bytes of table, index and write-ahead log.

Run as `python -m bench.store [--runs 100] [--lines 500]`: one worker's store writes lines of 1.1 kB of all runs at the
same time, 5 lines at a time, to a server of its own.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from agent_runs.client.connection import run_to_end
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.transcript.store import Line, TranscriptStore
from bench.reports import machine
from tests.transcript.postgres import Postgres

LINE_BYTES = 1100
BATCH = 5
_TICK = os.sysconf("SC_CLK_TCK")
_SIZES = """
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint AS log,
        (SELECT sum(pg_table_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'lines'::regclass)::bigint AS table,
        (SELECT sum(pg_indexes_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'lines'::regclass)::bigint AS index,
        pg_total_relation_size('attempts') AS attempts"""


def server_cpu(folder: Path) -> float:
    """CPU seconds of the server's processes, those that ended included."""
    postmaster = (folder / "data" / "postmaster.pid").read_text().split()[0]
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if stat.parent.name == postmaster:
            total += sum(map(int, fields[11:15]))
        elif fields[1] == postmaster:
            total += int(fields[11]) + int(fields[12])
    return total / _TICK


async def write(store: TranscriptStore, number: int, count: int) -> None:
    key = AttemptKey(run=RunKey(agent_id=f"agent-{number}", company_id="bench", run_id=f"{number:036}"))
    for start in range(1, count + 1, BATCH):
        now = datetime.now(UTC)
        batch = [
            Line(start + each, "stdout", os.urandom(LINE_BYTES // 2).hex().encode(), at=now) for each in range(BATCH)
        ]
        await store.append(key, batch)


async def measure(server: Postgres, runs: int, lines: int) -> Mapping[str, float]:
    """Per line, but for `seconds`, `attempts` (bytes of a run's row)."""
    store = await TranscriptStore.open(server.url())
    connection = await asyncpg.connect(server.url())
    before, cpu, own, began = (
        await connection.fetchrow(_SIZES),
        server_cpu(server.folder),
        time.process_time(),
        time.time(),
    )
    await asyncio.gather(*(write(store, number, lines) for number in range(runs)))
    took, own = time.time() - began, time.process_time() - own
    cpu, after = server_cpu(server.folder) - cpu, await connection.fetchrow(_SIZES)
    await connection.close()
    await store.close()
    count = runs * lines
    sizes = {name: (after[name] - before[name]) / count for name in ("table", "index", "log")}
    return sizes | {
        "worker": own / count * 1e6,
        "server": cpu / count * 1e6,
        "attempts": after["attempts"] / runs,
        "rate": count / took,
    }


def main() -> None:
    options = argparse.ArgumentParser(description="What a line costs in PostgreSQL.")
    options.add_argument("--runs", type=int, default=100)
    options.add_argument("--lines", type=int, default=500)
    arguments = options.parse_args()
    server = Postgres()
    server.start()

    async def run() -> None:
        cost = await measure(server, arguments.runs, arguments.lines)
        print(
            f"{machine()}; {arguments.runs} runs, {cost['rate']:,.0f} lines/s.\n\n"
            "| a line of 1.1 kB | |\n|---|---:|\n"
            f"| CPU of the worker (with making the line), µs | {cost['worker']:.0f} |\n"
            f"| CPU of the server, µs | {cost['server']:.0f} |\n"
            f"| table, bytes | {cost['table']:.0f} |\n"
            f"| index, bytes | {cost['index']:.0f} |\n"
            f"| write-ahead log, bytes | {cost['log']:.0f} |\n"
            f"| row of the attempt, dead versions included, bytes | {cost['attempts']:.0f} |"
        )

    try:
        run_to_end(run)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
