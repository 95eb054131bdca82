"""Samples mutants of the modules that keep the promises, and reports those that their own tests do not notice.

    python -m tests.mutation [--count 200] [--seed 1] [--jobs 1]

A mutant is a copy of the checkout with one small change. It is killed when a test of its module fails, or takes too
long. Mutants that cannot be killed are explained in survivors.toml beside this file, and do not count. Exits with 1
when fewer than 95 % are killed, and with 3 when the tool, Cosmic Ray, could not be installed: in an environment of its
own beside `.venv`, because its requirements are not ours.
"""

import argparse
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import pytest

from tests.mutation import pytest_process

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
ENVIRONMENT: Final = ROOT / ".venv-mutation"
PYTHON: Final = ENVIRONMENT / "bin" / "python"
LEAST_KILLED: Final = 0.95
NOT_INSTALLED: Final = 3
"""Exit code."""
TEST_TIMEOUT: Final = 45
TIMEOUT: Final = 240
"""Seconds for one test, and for all tests of a mutant."""

OPTIONS: Final = (
    *("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("--hypothesis-profile", "mutation", "--assert", "plain"),
)

TESTS: Final[dict[str, tuple[str, ...]]] = {
    "agent_runs/client/attach.py": tuple(
        f"tests/{name}.py" for name in ("client/test_attach", "workflows/test_callers", "workflows/test_early_outcome")
    ),
    "agent_runs/client/outcome.py": tuple(
        f"tests/{name}.py"
        for name in (
            *("client/test_outcome", "client/test_attach"),
            *("workflows/test_cancel", "workflows/test_statuses", "workflows/test_callers"),
        )
    ),
    "workflows/retries.py": tuple(
        f"tests/workflows/test_{name}.py" for name in ("retries", "infrastructure", "agent_run", "callers")
    ),
    "agent_runs/transcript/store.py": tuple(
        f"tests/transcript/test_{name}.py"
        for name in ("store_fencing", "store_retention", "notifier", "follow", "store", "store_outage", "fleet")
    ),
    "agent_runs/logs/log_resume.py": tuple(
        f"tests/logs/test_{name}.py" for name in ("log_resume", "follower", "silence")
    ),
    "agent_runs/logs/stored_output.py": ("tests/logs/test_log_resume.py", "tests/activities/test_stream_logs.py"),
    "agent_runs/transcript/fold.py": (
        *(
            "tests/conformance/test_opencode_output.py",
            "tests/transcript/test_captures.py",
            "tests/transcript/test_verdict.py",
        ),
        *("tests/transcript/test_events.py", "tests/transcript/test_budget.py"),
    ),
    "agent_runs/transcript/verdict.py": tuple(
        f"tests/{name}.py"
        for name in ("transcript/test_verdict", "conformance/test_opencode_output", "transcript/test_captures")
    ),
    **{
        f"agent_runs/job/{name}.py": (
            "tests/job",
            "tests/conformance/test_job_manifest.py",
            "tests/activities/test_token_run.py",
        )
        for name in ("manifest", "containers", "volumes", "agent_pod")
    },
    "agent_runs/job/policy.py": (
        *("tests/job/test_policy.py", "tests/security/test_policy.py"),
        *("tests/job/test_pod_options.py", "tests/job/test_pod_template.py"),
    ),
    "agent_runs/job/data_volume.py": (
        "tests/security/test_volumes.py",
        "tests/security/test_databases.py",
        "tests/job",
    ),
    "agent_runs/job/placement.py": ("tests/job", "tests/conformance/test_job_manifest.py"),
    "agent_runs/paperclip/sealing.py": ("tests/paperclip/test_sealing.py", "tests/activities/test_rotate_token.py"),
    "agent_runs/paperclip/preparation.py": (
        *(
            f"tests/paperclip/test_{name}.py"
            for name in ("preparation", "environment", "host_texts", "session", "skills")
        ),
        *("tests/conformance/test_paperclip.py", "tests/paperclip"),
    ),
    "agent_runs/paperclip/tools.py": ("tests/paperclip/test_host_texts.py", "tests/paperclip"),
    "agent_runs/paperclip/redaction.py": ("tests/paperclip/test_redaction.py", "tests/activities/test_stream_logs.py"),
    "agent_runs/paperclip/spellings.py": ("tests/paperclip/test_redaction.py", "tests/paperclip/test_secret_values.py"),
    "agent_runs/paperclip/session.py": (
        *("tests/paperclip/test_session.py", "tests/conformance/test_paperclip.py"),
        "tests/paperclip/test_preparation.py",
    ),
    "agent_runs/paperclip/result.py": ("tests/paperclip/test_result.py", "tests/conformance/test_paperclip.py"),
    "agent_runs/contracts/request.py": (
        *("tests/agents/test_form.py", "tests/paperclip/test_result.py", "tests/paperclip/test_preparation.py"),
        *("tests/contracts", "tests/paperclip/test_environment.py", "tests/opencode/test_command.py"),
        *("tests/security/test_policy.py", "tests/workflows/test_boundary.py"),
    ),
    "agent_runs/contracts/identity.py": (
        *("tests/contracts/test_identity.py", "tests/workflows/test_boundary.py", "tests/job/test_manifest.py"),
        *("tests/kube/test_previous_runs.py", "tests/security/test_network.py"),
    ),
    "agent_runs/paperclip/advanced.py": ("tests/paperclip/test_advanced.py",),
    "agent_runs/plain_yaml.py": ("tests/security/test_bombs.py", "tests/kube/test_credentials.py", "tests/job"),
    "agent_runs/kube/credentials.py": ("tests/kube/test_credentials.py", "tests/kube/test_client.py"),
    "agent_runs/kube/diagnosis.py": tuple(
        f"tests/{name}.py"
        for name in (
            *("kube/test_diagnosis", "kube/test_evictions", "conformance/test_pod_wait", "logs/test_follower"),
            *("activities/test_finish", "runs/test_scheduling"),
        )
    ),
    "agent_runs/transcript/provider_errors.py": tuple(
        f"tests/{name}.py"
        for name in (
            *("agents/test_profiles", "transcript/test_verdict", "conformance/test_opencode_output"),
            "transcript/test_captures",
        )
    ),
    "agent_runs/transcript/lines.py": tuple(
        f"tests/{name}.py"
        for name in (
            *("transcript/test_events", "transcript/test_store", "logs/test_log_resume", "logs/test_follower"),
            "activities/test_one_fold",
        )
    ),
    "agent_runs/logs/silence.py": tuple(
        f"tests/{name}.py"
        for name in ("logs/test_silence", "workflows/test_deadlines", "activities/test_progress", "logs/test_follower")
    ),
    "agent_runs/client/obstacles.py": tuple(
        f"tests/{name}.py"
        for name in ("client/test_obstacles", "cli/test_display", "web/test_pages", "cli/test_follow")
    ),
    "agent_runs/cli/display.py": (
        *("tests/cli/test_display.py", "tests/cli/test_commands.py", "tests/cli/test_listing.py"),
        *("tests/cli/test_replay.py", "tests/security/test_hostile_input.py"),
    ),
    "agent_runs/service/health.py": ("tests/service/test_health.py", "tests/service/test_starting.py"),
    "agent_runs/pod/sidecar/shared.py": ("tests/security/test_sidecar_files.py", "tests/pod/test_sidecar_output.py"),
    "agent_runs/pod/sidecar/output.py": tuple(
        f"tests/{name}.py"
        for name in ("pod/test_sidecar_output", "security/test_sidecar_files", "pod/test_frames", "pod/test_peaks")
    ),
    **{
        f"agent_runs/pod/sidecar/drivers/{name}.py": tuple(
            f"tests/{file}.py"
            for file in ("pod/test_driver_lines", "security/test_streamed_secrets", "pod/test_driver")
        )
        for name in ("growth", "lines")
    },
    "agent_runs/pod/sidecar/drivers/acp/mapping.py": (
        *("tests/pod/test_acp_mapping.py", "tests/security/test_streamed_secrets.py"),
        *("tests/pod/test_acp.py", "tests/agents/test_captures.py", "tests/pod/test_acp_agents.py"),
    ),
    "agent_runs/pod/sidecar/drivers/questions.py": tuple(
        f"tests/{name}.py" for name in ("logs/test_questions", "pod/test_acp", "pod/test_questions")
    ),
    "agent_runs/logs/questions.py": ("tests/logs/test_questions.py",),
    "workflows/asking.py": tuple(f"tests/workflows/test_{name}.py" for name in ("asking", "callers")),
    "workflows/telling.py": tuple(f"tests/workflows/test_{name}.py" for name in ("telling", "asking")),
    "workflows/boundary.py": tuple(f"tests/workflows/test_{name}.py" for name in ("statuses", "boundary", "callers")),
    "workflows/attributes.py": tuple(
        f"tests/{name}.py"
        for name in ("client/test_search_attributes", "workflows/test_agent_run", "workflows/test_boundary")
    ),
}
"""The modules, and the tests that the gate has for each: those first that fail soonest."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        line: as it is.
        becomes: the line as it is changed.
        text: the changed module.
    """

    module: str
    operator: str
    number: int
    line: str
    becomes: str
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.number} {self.operator}: {self.becomes}"


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test can kill, because it is the same program; with the fields of `Mutant`.

    Attributes:
        becomes: None for all changes of the line by this operator.
    """

    module: str
    operator: str
    line: str
    reason: str
    becomes: str | None = None

    def explains(self, mutant: Mutant) -> bool:
        same = (self.module, self.operator, self.line) == (mutant.module, mutant.operator, mutant.line)
        return same and self.becomes in {None, mutant.becomes}

    @property
    def is_stale(self) -> bool:
        """Whether its module has no such line any more."""
        return self.line not in map(str.strip, (ROOT / self.module).read_text().splitlines())


def explained_survivors() -> list[Survivor]:
    return [Survivor(**entry) for entry in tomllib.loads((HERE / "survivors.toml").read_text())["survivor"]]


def ensure_tool() -> bool:
    """Installs the tool, unless it is there. Returns whether it is."""
    if PYTHON.with_name("cosmic-ray").exists():
        return True
    venv.create(ENVIRONMENT, with_pip=True)
    return subprocess.run([PYTHON, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"]).returncode == 0


def tool(*arguments: str, text: str = "") -> str:
    return subprocess.run(
        [PYTHON, HERE / "mutants.py", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, input=text
    ).stdout


def sample(count: int, seed: int) -> list[Mutant]:
    """So many mutants; for the same seed the same ones, also after other lines have changed."""
    texts = {module: (ROOT / module).read_text().splitlines() for module in TESTS}
    times: Counter[tuple[str, ...]] = Counter()
    ranked = []
    for line in tool("list", *TESTS).splitlines():
        module, operator, _, number = line.split()
        name = (module, operator, texts[module][int(number) - 1].strip())
        times[name] += 1
        ranked.append((hashlib.sha256(repr((seed, *name, times[name])).encode()).digest(), line))
    chosen = [line for _, line in sorted(ranked)[:count]]
    mutants = []
    for line, text in zip(chosen, json.loads(tool("show", text="\n".join(chosen))), strict=True):
        module, operator, _, number = line.split()
        pairs = zip(texts[module], text.splitlines(), strict=False)
        before, after = next(pair for pair in pairs if pair[0] != pair[1])
        mutants.append(Mutant(module, operator.removeprefix("core/"), int(number), before.strip(), after.strip(), text))
    return mutants


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
    path.write_text(mutant.text)
    try:
        code = pytest_process.run(folder, [*OPTIONS, *TESTS[mutant.module]], TEST_TIMEOUT, TIMEOUT)
    finally:
        path.write_text(original)
        Path(importlib.util.cache_from_source(path)).unlink(
            missing_ok=True
        )  # the next one may have its size and second
    return code != pytest.ExitCode.OK


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
            print("killed   " if killed else "SURVIVED ", mutant, flush=True)
            return None if killed else mutant

        with ThreadPoolExecutor(jobs) as pool:
            return [mutant for mutant in pool.map(judge, mutants) if mutant is not None]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if not ensure_tool():
        print("skipped: Cosmic Ray could not be installed")
        return NOT_INSTALLED
    explained = explained_survivors()
    mutants = []
    for mutant in sample(options.count, options.seed):
        known = next((survivor for survivor in explained if survivor.explains(mutant)), None)
        if known is None:
            mutants.append(mutant)
        else:
            print("explained", mutant, "-", known.reason)
    alive = survivors(mutants, options.jobs)
    share = 1 - len(alive) / len(mutants)
    print(f"{len(mutants) - len(alive)} of {len(mutants)} killed ({share:.1%}); at least {LEAST_KILLED:.0%} must be")
    return 0 if share >= LEAST_KILLED else 1


if __name__ == "__main__":
    sys.exit(main())
