"""What many runs take, on paper: measured unit costs (docs/scaling.md) times a simulated day of runs.

Run as `python -m bench.scaling [--runs 1000000] [--lines 0.5]`; the same arguments print the same tables. Runs start at
random times, more of them by day; their lengths are lognormal. Each is given to a random worker, as workers that poll
one queue get them, and to a random history shard of Temporal. One worker is killed in the busiest minute.
"""

import argparse
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

DAY: Final = 86_400
MEAN_LENGTH: Final = 600
"""Seconds."""
SPREAD: Final = 1.2
"""Of the logarithm of a run's length: half of the runs take under 5 minutes, one in a hundred over 80."""
DAYTIME: Final = 0.44
"""How many more runs than on average start in the busiest hour."""
RETENTION: Final = 30
"""Days."""

LINE_CPU: Final = 300e-6
RUN_CPU: Final = 0.4
"""Of a worker, without its lines."""
IDLE_CPU: Final = 450e-6
"""Of a worker, per second of a run that writes nothing: heartbeats and the open stream."""
BUSY: Final = 0.6
"""Of a core. Beyond it lines wait for the event loop (docs/benchmarks.md)."""
RUNS_PER_WORKER: Final = 500
HEARTBEAT: Final = 4
WRITES_PER_RUN: Final = 50
"""By Temporal: a history of 53 events, and the caller's 11, some of them in one write."""
ACTIONS_PER_RUN: Final = 16
HISTORY_BYTES: Final = 31 * 1024
SHARD_WRITE: Final = 0.005
"""Seconds of one write of Temporal's to its database, assumed: a history shard does one at a time."""
REQUESTS_PER_RUN: Final = 12
POD_CHANGES: Final = 8
"""Of one run's pod, assumed: created, bound, two containers that start and end, deleted."""
ROW_BYTES: Final = 1366 + 132
LOG_BYTES: Final = 1619
LINE_SERVER_CPU: Final = 60e-6
CONNECTIONS: Final = 10
COMMITS: Final = 10
"""Of one busy worker in a second."""


@dataclass
class Day:
    """What one simulated day showed."""

    runs: int
    busiest: int = 0
    """The most runs at a time."""
    starts: int = 0
    """The most in a minute."""
    live: list[tuple[int, int]] = field(default_factory=list)
    """Start and end of the runs in the busiest minute."""


def simulate(runs: int, chance: random.Random) -> Day:
    """A day in the middle of many like it: what is live at its end was also live at its beginning."""
    day = Day(runs)
    change, started = [0] * (DAY // 60 + 1), Counter[int]()
    median = math.log(MEAN_LENGTH) - SPREAD**2 / 2
    times = list[tuple[int, int]]()
    for _ in range(runs):
        start = _start(chance)
        end = start + int(chance.lognormvariate(median, SPREAD))
        times.append((start, end))
        started[start // 60] += 1
        change[start // 60] += 1
        if end // 60 + 1 <= DAY // 60:
            change[end // 60 + 1] -= 1
        else:  # it began the day before
            change[0] += 1
            change[min((end - DAY) // 60 + 1, DAY // 60)] -= 1
    count, at = 0, 0
    for minute, difference in enumerate(change[:-1]):
        count += difference
        if count > day.busiest:
            day.busiest, at = count, minute * 60
    day.starts = max(started.values())
    day.live = [time for time in times if time[0] < at + 60 and time[1] >= at]
    return day


def _start(chance: random.Random) -> int:
    """A second of the day; most likely at noon."""
    while True:
        second = chance.randrange(DAY)
        if chance.random() * (1 + DAYTIME) < 1 - DAYTIME * math.cos(2 * math.pi * second / DAY):
            return second


def runs_per_worker(lines: float) -> int:
    """How many runs one worker process can follow: by its CPU, and by its slots."""
    per_run = IDLE_CPU + lines * LINE_CPU + RUN_CPU / MEAN_LENGTH
    return min(RUNS_PER_WORKER, int(BUSY / per_run))


def busiest_worker(live: int, workers: int, chance: random.Random) -> tuple[int, int]:
    """Runs of the busiest of the workers; and once one has been killed, and its runs went to the others."""
    spread = Counter(chance.randrange(workers) for _ in range(live))
    before, killed = max(spread.values()), spread.pop(0, 0)
    spread.update(chance.randrange(1, workers) for _ in range(killed))
    return before, max(spread.values())


def busiest_shard(day: Day, shards: int, chance: random.Random) -> float:
    """How much of the time the busiest history shard writes, in the busiest minute."""
    live = Counter(chance.randrange(shards) for _ in range(day.busiest))
    starts = Counter(chance.randrange(shards) for _ in range(day.starts))
    writes = (live[shard] / HEARTBEAT + starts[shard] * WRITES_PER_RUN / 60 for shard in range(shards))
    return max(writes) * SHARD_WRITE


def report(runs: int, lines: float) -> str:
    chance = random.Random(1)
    day = simulate(runs, chance)
    capacity = runs_per_worker(lines)
    workers = max(2, math.ceil(day.busiest / capacity) + 1)
    before, after = busiest_worker(day.busiest, workers, chance)
    per_second, lines_per_second = day.starts / 60, day.busiest * lines
    lines_per_day = runs * MEAN_LENGTH * lines
    heartbeats = runs * MEAN_LENGTH / HEARTBEAT
    commits = workers * COMMITS
    tera = 1e12
    rows = {
        "runs at a time, at the most (on average)": f"{day.busiest:,} ({runs * MEAN_LENGTH / DAY:,.0f})",
        "starts in a second, at the most": f"{per_second:.1f}",
        "runs that one worker can follow": f"{capacity}",
        "**workers**, one of them spare": f"{workers}",
        "runs of the busiest worker (after another was killed)": f"{before} ({after})",
        "lines in a second, at the most; in a day": f"{lines_per_second:,.0f}; {lines_per_day / 1e6:,.0f} million",
        "**PostgreSQL**: connections": f"{workers * CONNECTIONS}",
        "transactions in a second": f"{commits}",
        "CPU for lines, cores": f"{lines_per_second * LINE_SERVER_CPU:.1f}",
        "write-ahead log": f"{lines_per_second * LOG_BYTES / 1e6:.0f} MB/s",
        "rows and bytes in a day": f"{lines_per_day / 1e6:,.0f} million, {lines_per_day * ROW_BYTES / tera:.2f} TB",
        f"bytes of {RETENTION} days": f"{lines_per_day * ROW_BYTES * RETENTION / tera:.0f} TB",
        "**Temporal**: writes in a second": f"{day.busiest / HEARTBEAT + per_second * WRITES_PER_RUN:,.0f}, "
        f"{day.busiest / HEARTBEAT:,.0f} of them heartbeats",
        "actions in a day": f"{(runs * ACTIONS_PER_RUN + heartbeats) / 1e6:,.0f} million, "
        f"{heartbeats / 1e6:,.0f} of them heartbeats",
        "history in a day": f"{runs * HISTORY_BYTES / 1e9:.0f} GB",
        "busiest of 4 / 512 / 4096 history shards writes": " / ".join(
            f"{busiest_shard(day, shards, chance):.0%}" for shards in (4, 512, 4096)
        ),
        "**API servers**: requests in a second": f"{per_second * REQUESTS_PER_RUN:,.0f}",
        "watches; changes sent in a second": f"{workers}; {per_second * POD_CHANGES * workers:,.0f}",
        "open logs": f"{day.busiest:,}, {lines_per_second * 1100 * 1.1 / 1e6:.0f} MB/s",
    }
    head = f"| {runs:,} runs a day, {lines:g} lines/s each | |\n|---|---:|\n"
    return head + "\n".join(f"| {name} | {amount} |" for name, amount in rows.items())


def main() -> None:
    options = argparse.ArgumentParser(description="What many runs take, on paper.")
    options.add_argument("--runs", type=int, default=1_000_000)
    options.add_argument("--lines", type=float, default=0.5)
    arguments = options.parse_args()
    print(report(arguments.runs, arguments.lines))


if __name__ == "__main__":
    main()
