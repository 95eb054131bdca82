"""Which skills OpenCode gets as folders; all others are in the prompt."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bundle_prompt import BundlePromptActivity
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import BundlePrompt, PromptBundle
from agent_runs.contracts.request import PromptSource, RunConfig
from agent_runs.job.prompts import Prompts
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Manifest
from agent_runs.paperclip.preparation import Preparation
from tests.activities.fake_preparations import FakePreparations
from tests.job.inputs import create_job_input, job_plan, mounts

FOLDERS = "instances/default/skills/co-1"
BODY = "Read references/steps.md first."
RUN = RunKey(agent_id="ada", company_id="co-1", run_id="run")


class KeptPrompt:
    """Stands in for the cluster, as far as a prompt needs one."""

    namespace = "agents"
    text = ""

    async def put_secret(self, manifest: Manifest) -> str:
        self.text = base64.b64decode(manifest["data"]["prompt"]).decode()
        return "created"


class WithSkills(FakePreparations):
    """A run whose caller has read these skills."""

    def __init__(self, skills: Mapping[str, str] | None) -> None:
        super().__init__()
        self.skills = skills

    async def current(self) -> Preparation:
        prepared = await super().current()
        return replace(prepared, prompt=PromptSource(skills=None if self.skills is None else dict(self.skills)))


def skill(volume: Path, folder: str = f"{FOLDERS}/deploy", name: str | None = "deploy") -> str:
    """Makes a skill on the data volume, and returns its path as Paperclip has it."""
    (volume / folder).mkdir(parents=True)
    front_matter = f"---\nname: {name}\ndescription: How to deploy.\n---\n" if name else ""
    (volume / folder / "SKILL.md").write_text(f"{front_matter}{BODY} ({folder})")
    return f"/paperclip/{folder}"


async def bundle(
    volume: Path, *sources: str, host: Mapping[str, str] | None = None, claim: str | None = "paperclip", **config: Any
) -> tuple[str, PromptBundle]:
    """The prompt of an agent of co-1 with these required skills, and what is reported about it."""
    offered = [{"key": source, "source": source, "required": True} for source in sources]
    kept = KeptPrompt()

    async def data_claim() -> str | None:
        return claim

    step = BundlePromptActivity(cast("Cluster", kept), Prompts(WithSkills(host), volume, data_claim))
    chosen = RunConfig.model_validate({"model": "fake/model", "paperclipRuntimeSkills": offered, **config})
    input = BundlePrompt(attempt=AttemptKey(run=RUN), config=chosen)
    found = await ActivityEnvironment().run(step.bundle_prompt, input)
    return kept.text, found


@pytest.mark.parametrize("read_by_host", [True, False])
async def test_a_skill_on_the_data_volume_is_a_folder_and_not_in_the_prompt(tmp_path: Path, read_by_host: bool) -> None:
    source = skill(tmp_path)
    text, found = await bundle(tmp_path, source, host={source: BODY} if read_by_host else None)
    assert BODY not in text
    assert (found.skill_folders, found.warnings) == ((f"{FOLDERS}/deploy",), ())
    assert f"deploy in /paperclip/{FOLDERS}/deploy" in text


@pytest.mark.parametrize("read_by_host", [True, False])
@pytest.mark.parametrize("more", [{"skills": "inline"}, {"claim": None}], ids=["the agent wants it", "no data volume"])
async def test_it_is_in_the_prompt_otherwise(tmp_path: Path, read_by_host: bool, more: dict[str, Any]) -> None:
    source = skill(tmp_path)
    text, found = await bundle(tmp_path, source, host={source: BODY} if read_by_host else None, **more)
    assert BODY in text
    assert found.skill_folders == ()


async def test_a_skill_that_only_paperclips_host_has_is_in_the_prompt(tmp_path: Path) -> None:
    own, source = "/app/node_modules/@paperclipai/server/skills/paperclip", skill(tmp_path)
    text, found = await bundle(tmp_path, own, source, host={own: "How to report.", source: BODY})
    assert "How to report." in text
    assert BODY not in text
    assert found.skill_folders == (f"{FOLDERS}/deploy",)


async def test_a_skill_that_opencode_would_not_offer_is_in_the_prompt(tmp_path: Path) -> None:
    nameless = skill(tmp_path, f"{FOLDERS}/nameless", None)
    first, second = skill(tmp_path), skill(tmp_path, f"{FOLDERS}/of-the-same-name")
    text, found = await bundle(tmp_path, nameless, first, second)
    assert "nameless" in text
    assert "of-the-same-name" in text
    assert found.skill_folders == (f"{FOLDERS}/deploy",)


@pytest.mark.parametrize(
    "folder",
    [
        "instances/default/skills/co-2/deploy",
        "instances/default/projects/co-2/p-1/app/deploy",
        ".agent-homes/co-1/bob/instances/default/skills/co-1/deploy",
        "instances/default/workspaces/bob/skills/co-1/deploy",
        "instances/default/skills/co-1/../co-2/deploy",
    ],
)
async def test_no_folder_of_anybody_else_is_given(tmp_path: Path, folder: str) -> None:
    source = skill(tmp_path, folder)
    text, found = await bundle(tmp_path, source)
    assert found.skill_folders == ()
    assert BODY not in text


async def test_a_link_to_another_companys_skill_is_not_followed(tmp_path: Path) -> None:
    skill(tmp_path, "instances/default/skills/co-2/deploy")
    (tmp_path / FOLDERS).mkdir(parents=True)
    (tmp_path / FOLDERS / "deploy").symlink_to(tmp_path / "instances/default/skills/co-2/deploy")
    _, found = await bundle(tmp_path, f"/paperclip/{FOLDERS}/deploy")
    assert found.skill_folders == ()


def test_the_pod_gets_the_folder_read_only_and_no_folder_of_another_company() -> None:
    given = (f"{FOLDERS}/deploy", "instances/default/projects/co-1/p-9/app/skill", "instances/default/skills/co-2/x")
    input = create_job_input(config={"cwd": "/paperclip/elsewhere"})
    prompt = input.prompt.model_copy(update={"skill_folders": given})
    found = mounts(job_plan(input.model_copy(update={"prompt": prompt})))
    assert found[f"/paperclip/{given[0]}"]["readOnly"]
    assert found[f"/paperclip/{given[1]}"]["readOnly"]
    assert not any("co-2" in path for path in found)
