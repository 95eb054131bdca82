"""What an agent's configuration can have the worker read: the agent's own instructions, and its company's skills.

The plugin has the same rules and the same tests: adapter/tests/files.test.ts.
"""

import base64
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bundle_prompt import BundlePromptActivity
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import BundlePrompt
from agent_runs.contracts.request import RunConfig
from agent_runs.job.prompts import Prompts
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Manifest
from tests.activities.fake_preparations import FakePreparations

CANARY = "canary-41d0"
REFUSED = "leads out of this agent's own folders"
EXCHANGE = Path(__file__).with_name("exchange.py")
INSTANCE = "instances/default"
OWN = f"{INSTANCE}/companies/acme/agents/ada/instructions"


class KeptPrompt:
    """Stands in for the cluster, as far as a prompt needs one."""

    namespace = "agents"
    text = ""

    async def put_secret(self, manifest: Manifest) -> str:
        self.text = base64.b64decode(manifest["data"]["prompt"]).decode()
        return "created"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Paperclip's data volume, with the instructions of agent Ada of the company Acme."""
    volume = tmp_path / "paperclip"
    write(volume / OWN / "AGENTS.md", "Be kind.")
    return volume


async def prompt(volume: Path, config: RunConfig) -> tuple[str, tuple[str, ...]]:
    """The prompt of agent Ada with this configuration, and the warnings about it."""
    kept = KeptPrompt()
    step = BundlePromptActivity(cast("Cluster", kept), Prompts(FakePreparations(), volume))
    attempt = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run"))
    bundle = await ActivityEnvironment().run(step.bundle_prompt, BundlePrompt(attempt=attempt, config=config))
    return kept.text, bundle.warnings


def with_instructions(path: Path | str) -> RunConfig:
    return RunConfig.model_validate({"model": "fake/model", "instructionsFilePath": str(path)})


def with_skill(source: Path | str) -> RunConfig:
    skill = {"key": "acme/skill", "source": str(source), "required": True}
    return RunConfig.model_validate({"model": "fake/model", "paperclipRuntimeSkills": [skill]})


async def assert_refused(volume: Path, path: Path, reason: str = REFUSED) -> None:
    """Nothing was read; one warning names the field, the path and the reason."""
    text, warnings = await prompt(volume, with_instructions(path))
    assert CANARY not in text
    assert warnings == (f"instructionsFilePath not readable: {path}: {path}: {reason}",)
    text, warnings = await prompt(volume, with_skill(path))
    assert CANARY not in text
    assert warnings == (f"skill not readable: {path}: {reason}",)


async def test_an_agents_own_instructions_are_read_by_the_path_in_its_pod(volume: Path) -> None:
    text, warnings = await prompt(volume, with_instructions(f"/paperclip/{OWN}/AGENTS.md"))
    assert ("Be kind." in text, warnings) == (True, ())


@pytest.mark.parametrize("folder", ["skills/acme/one", "projects/acme/project/repository/one"])
async def test_a_skill_of_the_agents_company_is_read(volume: Path, folder: str) -> None:
    write(volume / INSTANCE / folder / "SKILL.md", "# One")
    text, warnings = await prompt(volume, with_skill(f"/paperclip/{INSTANCE}/{folder}"))
    assert ("# One" in text, warnings) == (True, ())


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("secrets/master.key", id="Paperclip's master key"),
        pytest.param(".env", id="Paperclip's environment"),
        pytest.param("companies/acme/agents/bob/instructions/AGENTS.md", id="another agent's instructions"),
        pytest.param("companies/other/agents/ada/instructions/AGENTS.md", id="another company's agent"),
        pytest.param("skills/other/one.md", id="another company's skill"),
        pytest.param("workspaces/bob/AGENTS.md", id="another agent's workspace"),
    ],
)
async def test_nothing_else_on_the_volume_is_read(volume: Path, path: str) -> None:
    await assert_refused(volume, write(volume / INSTANCE / path, CANARY))


async def test_the_sealing_key_is_not_read(volume: Path, tmp_path: Path) -> None:
    await assert_refused(volume, write(tmp_path / "keys" / "sealing-key.json", CANARY))


async def test_an_environment_file_beside_a_skill_is_not_read(volume: Path) -> None:
    path = write(volume / INSTANCE / "projects" / "acme" / "repository" / ".env", CANARY)
    text, warnings = await prompt(volume, with_skill(path))
    assert CANARY not in text
    assert warnings == (f"skill not readable: {path}: leads to keys or logins",)


async def test_a_planted_link_is_not_followed_out_of_the_agents_folder(volume: Path) -> None:
    planted = volume / OWN / "PLANTED.md"
    planted.symlink_to(write(volume / INSTANCE / "secrets" / "master.key", CANARY))
    await assert_refused(volume, planted)


async def test_a_folder_that_became_a_link_is_not_followed(volume: Path) -> None:
    another = write(volume / INSTANCE / "companies/acme/agents/bob/instructions/AGENTS.md", CANARY).parent
    (volume / OWN).rename(volume / "before")
    (volume / OWN).symlink_to(another)
    await assert_refused(volume, volume / OWN / "AGENTS.md")


async def test_a_planted_hard_link_is_not_read(volume: Path) -> None:
    planted = volume / OWN / "PLANTED.md"
    planted.hardlink_to(write(volume / INSTANCE / "secrets" / "master.key", CANARY))
    text, warnings = await prompt(volume, with_instructions(planted))
    assert CANARY not in text
    assert "several names" in warnings[0]


@pytest.fixture
def exchanged(volume: Path, tmp_path: Path) -> Iterator[Path]:
    """The agent's own file, while its folder and a link to another folder are exchanged all the time."""
    write(tmp_path / "outside" / "AGENTS.md", CANARY)
    (volume / "trap").symlink_to(tmp_path / "outside")
    arguments = [sys.executable, str(EXCHANGE), str(volume / OWN), str(volume / "trap")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as attacker:
        assert attacker.stdout is not None
        attacker.stdout.readline()
        yield volume / OWN / "AGENTS.md"
        attacker.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is a call of Linux")
async def test_a_folder_that_is_exchanged_while_it_is_read_never_leads_out_of_it(volume: Path, exchanged: Path) -> None:
    counts = {"own": 0, "refused": 0, "leaked": 0}
    end = time.monotonic() + 3
    while time.monotonic() < end:
        text, _ = await prompt(volume, with_instructions(exchanged))
        counts["leaked" if CANARY in text else "own" if "Be kind." in text else "refused"] += 1
    assert counts["leaked"] == 0, counts
    assert min(counts["own"], counts["refused"]) > 0, counts
