"""Samples mutants of the modules that keep the promises, and reports those that their own tests do not notice.

    python -m tests.mutation [--count 200] [--seed 1] [--jobs 1]

A mutant is a copy of the checkout with one small change. It is killed when the tests of its module fail, or take five
minutes. Exits with 1 when fewer than 95 % are killed. The tool gets an environment of its own beside `.venv`, because
its requirements are not ours.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
ENVIRONMENT: Final = ROOT / ".venv-mutation"
PYTHON: Final = ENVIRONMENT / "bin" / "python"
LEAST_KILLED: Final = 0.95
TIMEOUT: Final = 300
"""Seconds for the tests of one mutant."""

TESTS: Final[dict[str, tuple[str, ...]]] = {
    "agent_runs/client/attach.py": ("tests/client/test_attach.py", "tests/workflows/test_callers.py"),
    "agent_runs/client/outcome.py": ("tests/workflows/test_cancel.py", "tests/workflows/test_statuses.py"),
    "workflows/retries.py": tuple(
        f"tests/workflows/test_{name}.py" for name in ("infrastructure", "agent_run", "callers")
    ),
    "agent_runs/transcripts/store.py": ("tests/transcripts",),
    "agent_runs/logs/log_resume.py": ("tests/logs",),
    "agent_runs/agents/opencode/fold.py": ("tests/opencode",),
    "agent_runs/agents/opencode/verdict.py": ("tests/opencode",),
    "agent_runs/job/manifest.py": ("tests/job", "tests/conformance", "tests/activities/test_token_run.py"),
    "agent_runs/job/placement.py": ("tests/job", "tests/conformance"),
    "agent_runs/paperclip/sealing.py": ("tests/paperclip", "tests/activities/test_rotate_token.py"),
    "agent_runs/paperclip/preparation.py": ("tests/paperclip", "tests/conformance"),
    "agent_runs/paperclip/tools.py": ("tests/paperclip",),
    "agent_runs/paperclip/redaction.py": ("tests/paperclip", "tests/activities/test_stream_logs.py"),
}
"""The modules, and the tests that the gate has for each."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    operator: str
    occurrence: str
    line: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.operator.removeprefix('core/')}"


def ensure_tool() -> None:
    """Installs the tool, unless its environment is there."""
    if not PYTHON.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"], check=True)


def tool(*arguments: str) -> str:
    """What the tool prints."""
    return subprocess.run(
        [PYTHON, HERE / "mutants.py", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def sample(count: int, seed: int) -> list[Mutant]:
    """So many mutants; the same ones for the same modules and seed."""
    mutants = [Mutant(*line.split()) for line in tool("list", *TESTS).splitlines()]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def copy(folder: Path) -> Path:
    """A copy of what git knows of the checkout."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def is_killed(mutant: Mutant, folder: Path) -> bool:
    """Whether the module's tests fail in a copy with this change."""
    path = folder / mutant.module
    original = path.read_text()
    path.write_text(tool("show", mutant.module, mutant.operator, mutant.occurrence))
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *TESTS[mutant.module]],
            cwd=folder,
            capture_output=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(original)
    return done.returncode == 1


def survivors(mutants: Sequence[Mutant], jobs: int) -> list[Mutant]:
    """The mutants that are not killed; each line of progress names one mutant."""
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(copy(Path(folder) / str(number)))

        def judge(mutant: Mutant) -> Mutant | None:
            place = copies.get()
            try:
                killed = is_killed(mutant, place)
            finally:
                copies.put(place)
            print("killed  " if killed else "SURVIVED", mutant, flush=True)
            return None if killed else mutant

        with ThreadPoolExecutor(jobs) as pool:
            return [mutant for mutant in pool.map(judge, mutants) if mutant is not None]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    ensure_tool()
    mutants = sample(options.count, options.seed)
    alive = survivors(mutants, options.jobs)
    share = 1 - len(alive) / len(mutants)
    print(f"{len(mutants) - len(alive)} of {len(mutants)} killed ({share:.1%}); at least {LEAST_KILLED:.0%} must be")
    return 0 if share >= LEAST_KILLED else 1


if __name__ == "__main__":
    sys.exit(main())
