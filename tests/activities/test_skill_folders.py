"""Which skills OpenCode gets as folders; all others are in the prompt."""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bundle_prompt import BundlePromptActivity
from agent_runs.agents.profile import AgentProfile, load
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import BundlePrompt, PromptBundle
from agent_runs.contracts.request import PromptSource, RunConfig, Secrets
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.attempt_plan import attempt_plan
from agent_runs.job.manifest import JobPlan
from agent_runs.job.prompts import Prompts
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.preparation import Preparation
from agent_runs.paperclip.sealing import Opener
from tests.activities.fake_preparations import FakePreparations, KeptPrompt
from tests.job.inputs import create_job_input, job_plan, mounts, volumes

FOLDERS = "instances/default/skills/co-1"
BODY = "Read references/steps.md first."
RUN = RunKey(agent_id="ada", company_id="co-1", run_id="run")


class WithSkills(FakePreparations):
    """A run whose caller has read these skills."""

    def __init__(self, skills: Mapping[str, str], folders: Mapping[str, str]) -> None:
        super().__init__()
        self.source = PromptSource(skills=dict(skills), skill_folders=dict(folders))

    async def current(self) -> Preparation:
        prepared = await super().current()
        return replace(prepared, prompt=self.source)


def skill(folder: str = f"{FOLDERS}/deploy", name: str | None = "deploy") -> tuple[str, str]:
    """The path of a skill, as Paperclip has it, and its text."""
    front_matter = f"---\nname: {name}\ndescription: How to deploy.\n---\n" if name else ""
    return f"/paperclip/{folder}", f"{front_matter}{BODY} ({folder})"


async def bundle(
    *offered: tuple[str, str], claim: str | None = "paperclip", sent: Mapping[str, str] | None = None, **config: Any
) -> tuple[str, PromptBundle]:
    """The prompt of an agent of co-1 with these required skills, and what is reported about it.

    Args:
        sent: the folders of skills whose files the plugin has sent, by their key.
    """
    listed = [{"key": source, "source": source, "required": True} for source, _ in offered]
    kept = KeptPrompt()

    async def data_claim() -> str | None:
        return claim

    prompts = Prompts(WithSkills(dict(offered), sent or {}), Opener([]), data_claim, PROFILES)
    step = BundlePromptActivity(cast("Cluster", kept), prompts)
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


PROFILES = {**load(), "goose": AgentProfile(name="goose", title="goose", command=("goose",))}
OWN = "/app/node_modules/@paperclipai/server/skills/paperclip"
SENT = {OWN: "paperclip"}
PAPERCLIPS = (OWN, skill(name="paperclip")[1])


@pytest.mark.parametrize("claim", ["paperclip", None], ids=["data volume", "no data volume"])
@pytest.mark.parametrize("agent", ["opencode", "claude"])
async def test_a_skill_that_comes_with_paperclip_is_a_folder_and_not_in_the_prompt(
    claim: str | None, agent: str
) -> None:
    text, found = await bundle(PAPERCLIPS, sent=SENT, claim=claim, agent=agent)
    assert BODY not in text
    assert "paperclip in /agent-run/skills/paperclip" in text
    assert (found.skill_folders, found.skill_names) == (("/agent-run/skills/paperclip",), ("paperclip",))


@pytest.mark.parametrize("more", [{"skills": "inline"}, {"agent": "goose"}], ids=["the agent wants it", "it must be"])
async def test_it_is_in_the_prompt_of_an_agent_that_loads_no_skills(more: dict[str, str]) -> None:
    text, found = await bundle(PAPERCLIPS, sent=SENT, **more)
    assert BODY in text
    assert found.skill_folders == ()


async def test_a_pinned_version_of_it_on_the_data_volume_is_the_folder() -> None:
    pinned = skill(f"{FOLDERS}/__versions__/1/2", "paperclip")
    _, found = await bundle(pinned, sent={pinned[0]: "paperclip"})
    assert found.skill_folders == (f"{FOLDERS}/__versions__/1/2",)


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


def sent_plan(*folders: str) -> JobPlan:
    """The plan of a pod whose worker has the files of two skills, and whose prompt counts on these folders."""
    files = {"paperclip/SKILL.md": "# Paperclip", "paperclip/references/api.md": "GET", "other/SKILL.md": "# Other"}
    secrets = Secrets(run_id="run", skill_files=files)
    input = create_job_input()
    prompt = input.prompt.model_copy(update={"skill_folders": folders})
    return attempt_plan(input.model_copy(update={"prompt": prompt}), secrets, {}, {}, AgentPodSettings())


def test_the_pod_gets_the_files_of_a_skill_that_comes_with_paperclip_read_only_from_its_secret() -> None:
    plan = sent_plan("/agent-run/skills/paperclip")
    mount = mounts(plan)["/agent-run/skills"]
    assert mount["readOnly"]
    source = volumes(plan)[mount["name"]]["secret"]
    content = {name: base64.b64decode(text) for name, text in plan.run_secret["data"].items()}
    assert {each["path"]: content[each["key"]] for each in source["items"]} == {
        "paperclip/SKILL.md": b"# Paperclip",
        "paperclip/references/api.md": b"GET",
    }
    assert source["defaultMode"] == 0o555  # scripts run
    config = json.loads(content["opencode.json"])
    assert config["skills"]["paths"] == ["/agent-run/skills/paperclip"]
    assert b"# Other" not in content.values()


def test_a_pod_without_such_a_skill_has_no_volume_for_it() -> None:
    assert "/agent-run/skills" not in mounts(sent_plan(f"{FOLDERS}/deploy"))


def test_the_pod_gets_the_folder_read_only_and_no_folder_of_another_company() -> None:
    given = (f"{FOLDERS}/deploy", "instances/default/skills/co-2/x")
    input = create_job_input(config={"cwd": "/paperclip/elsewhere"})
    prompt = input.prompt.model_copy(update={"skill_folders": given})
    found = mounts(job_plan(input.model_copy(update={"prompt": prompt})))
    assert found[f"/paperclip/{given[0]}"]["readOnly"]
    assert not any("co-2" in path for path in found)
