"""`agent-runs parse`: folds a saved OpenCode output. Works offline."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent_runs.agents.opencode.fold import fold_chunks
from agent_runs.agents.opencode.verdict import SIGNAL_BASE
from agent_runs.cli.display import Display
from agent_runs.cli.refusals import Refused
from agent_runs.contracts.outcome import ContainerEnd

CHUNK: Final = 1 << 20


def parse(
    file: Path, display: Display, *, stderr: Path | None, exit_code: int | None, signal: int | None, resumed: str | None
) -> int:
    """Show the report of the fold. Returns 0 for a success, else 1.

    Args:
        exit_code: OpenCode's; None means 0, or 128 plus `signal`.
    """
    code = exit_code if exit_code is not None else SIGNAL_BASE + signal if signal else 0
    fold = fold_chunks(_chunks(file), _chunks(stderr) if stderr else (), resumed)
    report = fold.report(ContainerEnd(exit_code=code, signal=signal), verified=True)
    display.report(report)
    return 0 if report.failure is None else 1


def _chunks(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as source:
            while chunk := source.read(CHUNK):
                yield chunk
    except OSError as error:
        raise Refused(f"{file}: {error.strerror}") from None
