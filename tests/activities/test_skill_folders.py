"""Which skills OpenCode gets as folders; all others are in the prompt."""

import base64
from collections.abc import Mapping
from dataclasses import replace
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

    def __init__(self, skills: Mapping[str, str]) -> None:
        super().__init__()
        self.skills = skills

    async def current(self) -> Preparation:
        prepared = await super().current()
        return replace(prepared, prompt=PromptSource(skills=dict(self.skills)))


def skill(folder: str = f"{FOLDERS}/deploy", name: str | None = "deploy") -> tuple[str, str]:
    """The path of a skill, as Paperclip has it, and its text."""
    front_matter = f"---\nname: {name}\ndescription: How to deploy.\n---\n" if name else ""
    return f"/paperclip/{folder}", f"{front_matter}{BODY} ({folder})"


async def bundle(*offered: tuple[str, str], claim: str | None = "paperclip", **config: Any) -> tuple[str, PromptBundle]:
    """The prompt of an agent of co-1 with these required skills, and what is reported about it."""
    listed = [{"key": source, "source": source, "required": True} for source, _ in offered]
    kept = KeptPrompt()

    async def data_claim() -> str | None:
        return claim

    step = BundlePromptActivity(cast("Cluster", kept), Prompts(WithSkills(dict(offered)), data_claim))
    chosen = RunConfig.model_validate({"model": "fake/model", "paperclipRuntimeSkills": listed, **config})
    input = BundlePrompt(attempt=AttemptKey(run=RUN), config=chosen)
    found = await ActivityEnvironment().run(step.bundle_prompt, input)
    return kept.text, found


async def test_a_skill_on_the_data_volume_is_a_folder_and_not_in_the_prompt() -> None:
    text, found = await bundle(skill())
    assert BODY not in text
    assert found.skill_folders == (f"{FOLDERS}/deploy",)
    assert f"deploy in /paperclip/{FOLDERS}/deploy" in text


@pytest.mark.parametrize("more", [{"skills": "inline"}, {"claim": None}], ids=["the agent wants it", "no data volume"])
async def test_it_is_in_the_prompt_otherwise(more: dict[str, Any]) -> None:
    text, found = await bundle(skill(), **more)
    assert BODY in text
    assert found.skill_folders == ()


async def test_a_skill_that_only_paperclips_host_has_is_in_the_prompt() -> None:
    own = "/app/node_modules/@paperclipai/server/skills/paperclip"
    text, found = await bundle((own, "How to report."), skill())
    assert "How to report." in text
    assert BODY not in text
    assert found.skill_folders == (f"{FOLDERS}/deploy",)


async def test_a_skill_that_opencode_would_not_offer_is_in_the_prompt() -> None:
    text, found = await bundle(skill(f"{FOLDERS}/nameless", None), skill(), skill(f"{FOLDERS}/of-the-same-name"))
    assert "nameless" in text
    assert "of-the-same-name" in text
    assert found.skill_folders == (f"{FOLDERS}/deploy",)


@pytest.mark.parametrize(
    "folder",
    [
        "instances/default/skills/co-2/deploy",
        "instances/default/projects/co-1/p-1/app/deploy",
        ".agent-homes/co-1/bob/instances/default/skills/co-1/deploy",
        "instances/default/workspaces/bob/skills/co-1/deploy",
        "instances/default/skills/co-1/../co-2/deploy",
    ],
)
async def test_no_folder_is_given_that_is_of_anybody_else_or_where_an_agent_can_put_a_link(folder: str) -> None:
    text, found = await bundle(skill(folder))
    assert found.skill_folders == ()
    assert BODY in text


def test_the_pod_gets_the_folder_read_only_and_no_folder_of_another_company() -> None:
    given = (f"{FOLDERS}/deploy", "instances/default/skills/co-2/x")
    input = create_job_input(config={"cwd": "/paperclip/elsewhere"})
    prompt = input.prompt.model_copy(update={"skill_folders": given})
    found = mounts(job_plan(input.model_copy(update={"prompt": prompt})))
    assert found[f"/paperclip/{given[0]}"]["readOnly"]
    assert not any("co-2" in path for path in found)
