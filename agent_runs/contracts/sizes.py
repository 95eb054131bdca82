"""Bytes as people write them, and the memory limit that an attempt's evidence advises."""

from typing import Final

from agent_runs.contracts.outcome import Peaks

MIB: Final = 1024 * 1024
STEP_MIB: Final = 64
"""Advised limits are multiples of it."""


def size(number: int) -> str:
    """`768 MiB`; below one, bytes."""
    return f"{number / MIB:,.0f} MiB" if number >= MIB else f"{number} bytes"


def memory_advice(peaks: Peaks) -> str:
    """`; limit 512 MiB, peak 512 MiB: set resources.limits.memory to at least 768Mi`, half as much again; empty
    without a known limit. A container that was killed as a whole had reached its limit, whatever it could report."""
    limit = peaks.memory_limit
    if not limit:
        return ""
    peak = f"peak {_least(peaks)}{size(peaks.memory)}" if peaks.memory is not None else "which it reached"
    least = -(-limit * 3 // (2 * MIB * STEP_MIB)) * STEP_MIB
    return f"; limit {size(limit)}, {peak}: set resources.limits.memory to at least {least}Mi"


def _least(peaks: Peaks) -> str:
    return "at least " if peaks.memory_reached_limit else ""


def peaks_text(peaks: Peaks) -> str:
    """One line for people; empty if nothing is known."""
    parts = []
    if peaks.memory is not None:
        of = f" of {size(peaks.memory_limit)}" if peaks.memory_limit else ""
        parts.append(f"memory {_least(peaks)}{size(peaks.memory)}{of}")
    elif peaks.memory_limit:
        parts.append(f"memory limit {size(peaks.memory_limit)}")
    if peaks.output_disk is not None:
        parts.append(f"output on disk {size(peaks.output_disk)}")
    return ", ".join(parts)
