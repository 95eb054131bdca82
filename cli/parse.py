"""`agent-runs parse`: folds a saved OpenCode output. Needs nothing that runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.display import Display
from cli.refusals import Refused
from contracts.outcome import ContainerEnd
from opencode.fold import fold_chunks

CHUNK: Final = 1 << 20
SIGNAL_BASE: Final = 128
"""A container that dies of a signal reports 128 plus its number."""


def parse(
    file: Path, display: Display, *, stderr: Path | None, exit_code: int | None, signal: int | None, resumed: str | None
) -> int:
    """Show what the fold says; 0 when that is a success, else 1.

    Args:
        exit_code: how OpenCode ended; None means 0, or 128 plus `signal`.
    """
    code = exit_code if exit_code is not None else SIGNAL_BASE + signal if signal else 0
    fold = fold_chunks(_chunks(file), _chunks(stderr) if stderr else (), resumed)
    report = fold.report(ContainerEnd(exit_code=code, signal=signal))
    display.report(report)
    return 0 if report.failure is None else 1


def _chunks(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as source:
            while chunk := source.read(CHUNK):
                yield chunk
    except OSError as error:
        raise Refused(f"{file}: {error.strerror}") from None
