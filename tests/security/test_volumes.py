"""An agent reaches its own folders of the data volume, and none of another agent, company or Paperclip itself."""

import shlex
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.contracts.errors import PolicyRefused
from agent_runs.contracts.request import RunConfig, Workspace
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.containers import LOGIN_FOLDERS
from agent_runs.job.data_volume import DataRules, Owner, RunFolders, home_path
from agent_runs.job.policy import Policy
from tests.job.inputs import AGENT, create_job_input, job_plan, mounts
from tests.runs.system import System
from tests.support.cases import case

OWNER = Owner("co-1", AGENT)
INSTANCE = "/paperclip/instances/default"
OWN = f"{INSTANCE}/workspaces/{AGENT}"
PROJECT = f"{INSTANCE}/projects/co-1/p-1/app"


def mounted(rules: DataRules | None = None, **paths: Any) -> dict[str, bool]:
    """The paths of the data volume that a run gets below /paperclip, and whether it may write there."""
    folders = RunFolders(OWNER, **paths).mounted(rules or DataRules())
    return {each.mount_path.removeprefix("/paperclip/"): not each.read_only for each in folders}


def reasons(directory: str, rules: DataRules | None = None, **paths: Any) -> list[str]:
    return [reason for _, _, reason in RunFolders(OWNER, directory, **paths).refusals(rules or DataRules())]


def test_an_agent_gets_its_home_its_workspace_and_what_it_may_read_but_never_the_volume() -> None:
    instructions = f"{INSTANCE}/companies/co-1/agents/{AGENT}/instructions"
    found = mounted(directory=OWN, instructions=f"{instructions}/AGENTS.md")
    assert found == {
        "/home/agent": True,
        f"instances/default/workspaces/{AGENT}": True,
        f"instances/default/companies/co-1/agents/{AGENT}/instructions": False,
        "instances/default/skills/co-1": False,
    }


@pytest.mark.parametrize(
    "workspace",
    [
        Workspace(cwd=f"{PROJECT}/.paperclip/worktrees/CO-1-fix", strategy="git_worktree"),
        Workspace(
            cwd=f"{PROJECT}/.paperclip/worktrees/CO-1-fix/web", worktree_path=f"{PROJECT}/.paperclip/worktrees/CO-1-fix"
        ),
        Workspace(cwd="/paperclip/worktrees/CO-1-fix", worktree_path="/paperclip/worktrees/CO-1-fix"),
    ],
    ids=["at Paperclip's place", "a folder of it", "elsewhere"],
)
def test_a_worktree_comes_with_the_repository_that_its_git_file_names(workspace: Workspace) -> None:
    assert workspace.cwd is not None
    found = [
        path
        for path, writable in mounted(directory=workspace.cwd, workspace=workspace, projects=[PROJECT]).items()
        if writable
    ]
    elsewhere = ["worktrees/CO-1-fix"] if workspace.cwd.startswith("/paperclip/worktrees") else []
    assert found == ["/home/agent", *elsewhere, "instances/default/projects/co-1/p-1/app"]


def test_a_folder_that_another_one_has_is_not_mounted_again_unless_it_may_be_written() -> None:
    inside = Workspace(cwd=f"{PROJECT}/web", agent_home=OWN)
    found = mounted(directory=f"{PROJECT}/web", workspace=inside, projects=[PROJECT], instructions=f"{OWN}/AGENTS.md")
    assert {path for path, writable in found.items() if writable} == {
        *("/home/agent", "instances/default/projects/co-1/p-1/app", f"instances/default/workspaces/{AGENT}")
    }
    assert {path for path, writable in found.items() if not writable} == {"instances/default/skills/co-1"}
    rules = DataRules(shared=("code", "code/docs"))
    assert mounted(rules, directory="/paperclip/code/app") == {"/home/agent": True, "code": False, "code/app": True}


REFUSED = [
    ("/paperclip", "whole data volume"),
    ("/paperclip/", "whole data volume"),
    (f"{OWN}/../../../..", "whole data volume"),
    ("/paperclip/instances", "Paperclip's own"),
    (INSTANCE, "Paperclip's own"),
    (f"{INSTANCE}/workspaces", "Paperclip's own"),
    (f"{INSTANCE}/workspaces/another", "another agent's"),
    (f"{OWN}/../another", "another agent's"),
    (f"/{INSTANCE}/workspaces/another", "another agent's"),
    (f"{INSTANCE}/projects/co-1", "Paperclip's own"),
    (f"{INSTANCE}/projects/co-2/p-1/app", "another company's"),
    (f"{INSTANCE}/secrets", "Paperclip's own"),
    (f"{INSTANCE}/db", "Paperclip's own"),
    (f"{INSTANCE}/companies/co-1/agents/another/instructions", "another agent's"),
    (f"{INSTANCE}/companies/co-1/agents/{AGENT}", "Paperclip's own"),
    ("/paperclip/home/instances/other/workspaces/another", "another agent's"),
    ("/paperclip/.opencode-db/co-1/another/task", "begins with '.'"),
    ("/paperclip/.agent-homes/co-1/another", "begins with '.'"),
    ("/paperclip/.ssh", "begins with '.'"),
    ("/paperclip/a:b", "':'"),
]


def test_a_workspace_that_is_not_the_agents_is_refused_with_its_field() -> None:
    for path, reason in REFUSED:
        with case(path):
            [found] = reasons(path, workspace=Workspace(cwd=path))
            assert reason in found
            folders = RunFolders(OWNER, path, Workspace(cwd=path))
            with pytest.raises(PolicyRefused, match=r"paperclipWorkspace\.cwd: "):
                Policy().check(RunConfig(model="fake/model"), folders=folders)
            assert set(mounted(directory=path, workspace=Workspace(cwd=path, agent_home=path), projects=[path])) <= {
                "/home/agent",
                "instances/default/skills/co-1",
                "home/instances/other/skills/co-1",
            }


@pytest.mark.parametrize("path", [OWN, f"{OWN}/sub", PROJECT, "/paperclip/code/app", "/elsewhere", "/home/agent"])
def test_an_agents_own_workspace_is_allowed(path: str) -> None:
    assert reasons(path) == []


def test_the_operator_lists_workspaces_shares_folders_or_gives_all() -> None:
    rules = Policy.parse("workspaces: [code/*]\nsharedFolders: [tools]\n", "policy.yaml").data
    assert reasons("/paperclip/code/app", rules) == []
    assert reasons("/paperclip/other", rules) == ["is not in the policy's list of workspaces"]
    assert mounted(rules, directory="/paperclip/code/app") == {"/home/agent": True, "code/app": True, "tools": False}
    whole = Policy.parse("wholeDataVolume: true\n", "policy.yaml").data
    assert reasons("/paperclip", whole) == []
    plan = job_plan(create_job_input(workspace=Workspace(cwd="/paperclip")), settings=AgentPodSettings(data=whole))
    assert mounts(plan)["/paperclip"] == {"name": "data", "mountPath": "/paperclip"}


PARTS = st.lists(
    st.sampled_from(
        [
            *("instances", "default", "workspaces", "projects", "companies", "agents", "skills", "secrets"),
            *("instructions", "co-1", "co-2", AGENT, "another", "..", ".", "", "x", ".agent-homes", ".opencode-db"),
        ]
    ),
    max_size=8,
).map(lambda parts: "/paperclip/" + "/".join(parts))


@given(directory=PARTS, worktree=PARTS, home=PARTS, project=PARTS, instructions=PARTS)
def test_no_spelling_of_a_path_leads_to_what_is_not_the_agents(
    directory: str, worktree: str, home: str, project: str, instructions: str
) -> None:
    workspace = Workspace(cwd=directory, worktree_path=worktree, agent_home=home)
    for path in mounted(directory=directory, workspace=workspace, projects=[project], instructions=instructions):
        parts = path.split("/")
        assert ".." not in parts
        assert path == "/home/agent" or not parts[0].startswith(".")
        if "instances" in parts:
            inside = parts[parts.index("instances") + 2 :]
            assert len(inside) >= 2
            assert inside[0] in {"workspaces", "projects", "skills", "companies"}
            assert inside[1] == (AGENT if inside[0] == "workspaces" else "co-1")


@given(st.tuples(st.text(min_size=1), st.text(min_size=1)), st.tuples(st.text(min_size=1), st.text(min_size=1)))
def test_only_the_same_agent_of_the_same_company_has_the_same_home(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert (home_path(Owner(*one)) == home_path(Owner(*other))) == (one == other)


def test_logins_for_all_agents_are_mounted_where_the_runner_looks_for_them() -> None:
    shared = DataRules(shared=(".local/share/opencode",))
    assert mounted(shared, directory=OWN)[".local/share/opencode"] is False
    assert f"/paperclip/{shared.shared[0]}" in LOGIN_FOLDERS


# a neighbour

GIT_CONFIG = "[core]\n\tfsmonitor = {program}\n"


@pytest.fixture
async def sharing(system: System) -> AsyncIterator[System]:
    """The system with a data volume that all agents share."""
    shared = await system.with_data_volume("paperclip")
    async with shared.worker():
        yield shared


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_what_a_neighbour_plants_in_homes_and_workspaces_never_runs(sharing: System, tmp_path: Path) -> None:
    proof = tmp_path / "the-planted-program-ran"
    planted = GIT_CONFIG.format(program=f"touch {proof}")
    places = '"$HOME" /paperclip "$PWD/.." "$PWD/../$VICTIM" /paperclip/.agent-homes/*/*'
    plant = sharing.agent(
        f"cat > /dev/null\nfor place in {places}; do\n"
        f'printf %s {shlex.quote(planted)} > "$place/.gitconfig"; done 2> /dev/null\n'
        'cat "$HOME/.gitconfig" > "$PWD/its-own-home"\n'
        "ls -A / /paperclip /paperclip/instances/default/workspaces >&2"
    )
    victim = sharing.agent('cat > /dev/null\ngit init -q . && git status --short 2>&1; echo "home: $(ls -A "$HOME")"')
    plant["config"]["env"]["VICTIM"] = victim["agent"]["id"]
    await sharing.outcome(victim)  # its folders exist
    await sharing.outcome(plant)
    again = {**victim, "runId": str(uuid.uuid4())}
    await sharing.outcome(again)
    volume = sharing.volume("paperclip")
    own = volume / f"instances/default/workspaces/{plant['agent']['id']}/its-own-home"
    assert own.read_text() == planted  # the neighbour did what it could
    assert not proof.exists()
    assert b"home: .local" in await sharing.stdout(again)  # only the folder for its logins
    assert victim["agent"]["id"].encode() not in b"\n".join(line.data for line in await sharing.lines(plant))


async def test_a_run_in_a_folder_of_another_agent_is_refused_before_anything_exists(sharing: System) -> None:
    raw = sharing.agent("cat > /dev/null")
    other = raw["context"]["paperclipWorkspace"]["cwd"].replace(raw["agent"]["id"], str(uuid.uuid4()))
    raw["context"]["paperclipWorkspace"]["cwd"] = other
    before = len(sharing.changes)
    outcome = await sharing.outcome(raw)
    assert outcome.error_code == "policy_refused"
    assert "paperclipWorkspace.cwd" in (outcome.error_message or "")
    assert sharing.changes[before:] == []


async def test_no_agent_starts_in_a_workspace_that_leads_elsewhere_and_the_run_says_so(sharing: System) -> None:
    raw = sharing.agent("cat > /dev/null; echo never")
    raw["config"]["infrastructureRetries"] = 0
    workspace = raw["context"]["paperclipWorkspace"]["cwd"].removeprefix("/paperclip/")
    volume = sharing.volume("paperclip")
    (volume / "secrets").mkdir(parents=True)
    (volume / workspace).parent.mkdir(parents=True, exist_ok=True)
    (volume / workspace).symlink_to(volume / "secrets")
    outcome = await sharing.outcome(raw)
    assert f"/paperclip/{workspace}" in (outcome.error_message or "")
    assert await sharing.stdout(raw) == []
