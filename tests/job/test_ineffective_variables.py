"""The table of variables without effect is what happens: each is planned into a Job, with all others that a Job has."""

import base64
import json
from pathlib import Path
from typing import Any

from agent_runs.agents.opencode.config import OVERRIDING_VARIABLES
from agent_runs.contracts.start import HostTexts
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.attempt_plan import attempt_plan
from agent_runs.job.manifest import JobPlan
from agent_runs.job.secrets import CONFIG_KEY, variable_key
from agent_runs.paperclip.environment import RESERVED
from agent_runs.paperclip.ineffective_variables import INEFFECTIVE, ineffective_variables
from agent_runs.paperclip.preparation import SCRATCH, prepare
from tests.job.inputs import create_job_input, environment
from tests.paperclip.contexts import captured
from tests.support.cases import case

CANARY = "/canary/5e1f"
RUNTIME_TOOLS = {
    "bearerToken": "t",
    "mcpEndpoint": "http://paperclip/api/mcp",
    "rest": {"connectionsSearch": "http://paperclip/a", "connectionRequest": "http://paperclip/b"},
    "expiresAt": "2026-11-23T00:00:00Z",
    "tools": ["a"],
    "guidance": "b",
}
WAKE = {
    "wakeReason": "comment",
    "wakeCommentId": "c",
    "approvalId": "a",
    "approvalStatus": "approved",
    "issueIds": ["i"],
    "paperclipRuntimePrimaryUrl": "http://app",
    "paperclipWorkspaces": [{"cwd": "/paperclip/a"}],
    "paperclipRuntimeServiceIntents": [{"a": 1}],
    "paperclipRuntimeServices": [{"a": 1}],
}
WORKSPACE = {
    "cwd": "/paperclip/a",
    "source": "project",
    "strategy": "git_worktree",
    "workspaceId": "w",
    "repoUrl": "https://git/a",
    "repoRef": "main",
    "branchName": "b",
    "worktreePath": "/paperclip/a",
}


def everything(**env: str) -> dict[str, Any]:
    """A captured context for which Paperclip sets every variable that it ever sets, and these of the agent."""
    context = captured("ctx-2")
    context["context"] |= {**WAKE, "paperclipWorkspace": WORKSPACE}
    context["runtimeTools"] = RUNTIME_TOOLS
    context["config"]["env"] |= env
    return context


HOST = HostTexts(wake_payload="{}")


def plan_of(context: dict[str, Any]) -> JobPlan:
    prepared = prepare(context, HOST)
    settings = AgentPodSettings(paperclip_api_url="http://paperclip:3100")
    input = create_job_input(request=prepared.request)
    return attempt_plan(input, prepared.secrets, {}, {}, settings)


def planned(context: dict[str, Any]) -> dict[str, str]:
    """The variables that the agent's container gets, with their values."""
    plan = plan_of(context)
    sealed = plan.run_secret["data"]
    return {
        name: value if isinstance(value, str) else base64.b64decode(sealed[variable_key(name)]).decode()
        for name, value in environment(plan).items()
    }


NAMES = sorted(
    {name for each in INEFFECTIVE for name in each.names}
    | set(planned(everything()))
    | OVERRIDING_VARIABLES
    | RESERVED
    | {"MINE", "AGENT_HOME", "NODE_ENV", "PATH", "NO_PROXY"}
)


def test_a_variable_of_the_agent_reaches_its_container_or_is_a_warning() -> None:
    for name in (each for each in NAMES if each not in SCRATCH):
        with case(name):
            context = everything(**{name: CANARY})
            effective = CANARY in planned(context).get(name, "")
            warned = any(f"config.env.{name}" in note for note in prepare(context, HOST).request.notes)
            assert (effective, warned) in {(True, False), (False, True)}


def test_a_warning_stays_short_whatever_is_set() -> None:
    warnings = ineffective_variables(NAMES)
    assert len(warnings) == len(INEFFECTIVE)
    assert max(map(len, warnings)) < 500
    assert json.dumps(warnings).count("\\") == 0


def test_the_switches_of_every_run_are_in_the_table() -> None:
    assert {name for name in planned(everything()) if name.startswith("OPENCODE_")} <= {
        name for each in INEFFECTIVE for name in each.names
    }
    assert Path(planned(everything())["OPENCODE_CONFIG"]).is_absolute()


def test_features_that_the_configuration_switches_on_reach_the_pod() -> None:
    context = everything()
    assert planned(context)["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"
    context["config"]["opencodeFeatures"] = ["projectConfig", "lsp", "snapshot"]
    variables = planned(context)
    assert (variables["OPENCODE_DISABLE_PROJECT_CONFIG"], variables["OPENCODE_DISABLE_SHARE"]) == ("0", "1")
    config = json.loads(base64.b64decode(plan_of(context).run_secret["data"][CONFIG_KEY]))
    assert [config[name] for name in ("lsp", "snapshot", "formatter", "autoupdate")] == [True, True, False, False]
