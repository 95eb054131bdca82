"""What benchmarks have in common: where, how much CPU, and tables."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path


def machine() -> str:
    """Where and when something was measured."""
    versions = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    return f"{datetime.now(UTC):%Y-%m-%d}, {versions}, load {os.getloadavg()[0]:.1f}"


def cpu_seconds(process: int) -> float:
    """What a process and its threads have used, by its id."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def milliseconds(rows: Mapping[str, Sequence[float]]) -> str:
    """Rows of seconds, one for each run, as a Markdown table."""
    lines = [f"| {len(next(iter(rows.values())))} runs | p50 ms | p99 ms |", "|---|---|---|"]
    lines += [
        f"| {name} | {statistics.median(values) * 1000:.0f} | {p99(values) * 1000:.0f} |"
        for name, values in rows.items()
    ]
    return "\n".join(lines)


def p99(values: Sequence[float]) -> float:
    """The value below which 99 of a hundred lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
