"""Behaviours that the existing adapters' tests pin: stored sessions, environment, prompt, provider. One row, one id.

Paperclip's default session codec passes session parameters through (rows S5 and S6). The skills page (row S8) is pinned
in `adapter/tests`.
"""

from typing import Any

import pytest

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.identity import RunKey
from agent_runs.paperclip.environment import environment
from agent_runs.paperclip.prompt import compose
from agent_runs.paperclip.result import provider
from agent_runs.paperclip.session import deserialize
from tests.paperclip.contexts import minimal, opened, with_value

WHOLE = {"sessionId": "ses_1", "cwd": "/w", "workspaceId": "ws", "repoUrl": "https://git.example/r", "repoRef": "main"}
LEGACY = {
    "session_id": "ses_1",
    "workdir": "/w",
    "workspace_id": "ws",
    "repo_url": "https://git.example/r",
    "repo_ref": "main",
}


def decoded(raw: object) -> dict[str, str] | None:
    params = deserialize(raw)
    return None if params is None else params.model_dump(exclude_none=True)


@pytest.mark.parametrize("raw", [None, "ses_1", 7, ["ses_1"], {}, {"cwd": "/w"}, {"sessionId": ""}, {"sessionId": " "}])
def test_s1_without_a_session_id_there_is_no_session(raw: object) -> None:
    assert decoded(raw) is None


@pytest.mark.parametrize(
    ("raw", "params"),
    [
        pytest.param({"sessionId": " a "}, {"sessionId": "a"}, id="trimmed"),
        pytest.param({"session_id": "a"}, {"sessionId": "a"}, id="session_id"),
        pytest.param({"sessionID": "a"}, {"sessionId": "a"}, id="sessionID"),
        pytest.param({"sessionID": "c", "session_id": "b", "sessionId": "a"}, {"sessionId": "a"}, id="first"),
        pytest.param({"sessionID": "c", "session_id": "b", "sessionId": ""}, {"sessionId": "b"}, id="second"),
        pytest.param({"sessionId": 7, "sessionID": "c"}, {"sessionId": "c"}, id="number"),
        pytest.param({"sessionId": "a", "folder": "/f"}, {"sessionId": "a", "cwd": "/f"}, id="folder"),
        pytest.param(
            {"sessionId": "a", "folder": "/f", "workdir": "/d"}, {"sessionId": "a", "cwd": "/d"}, id="workdir"
        ),
        pytest.param({"sessionId": "a", "workdir": "/d", "cwd": "/c"}, {"sessionId": "a", "cwd": "/c"}, id="cwd"),
        pytest.param({"sessionId": "a", "cwd": " ", "repoUrl": ""}, {"sessionId": "a"}, id="absent"),
        pytest.param({"sessionId": "a", "__paperclipConfiguredModel": "m", "n": 1}, {"sessionId": "a"}, id="host keys"),
        pytest.param(WHOLE, WHOLE, id="all"),
        pytest.param(LEGACY, WHOLE, id="legacy"),
    ],
)
def test_s2_to_s4_a_session_is_read_in_every_spelling(raw: object, params: object) -> None:
    assert decoded(raw) == params


@pytest.mark.parametrize("flag", [True, False, "true", None])
def test_s7_a_compaction_flag_is_dropped(flag: object) -> None:
    # A deviation: see docs/deviations.md.
    assert decoded({"sessionId": "a", "needsCompactBeforeNextRun": flag}) == {"sessionId": "a"}


# The environment: row J18.


def env_of(context: dict[str, Any], **inherited: str) -> dict[str, str]:
    request, secrets, _ = opened(context)
    return environment(request, secrets, api_url=None, inherited=inherited)


def test_j18_the_wake_payload_is_json() -> None:
    request, secrets, _ = opened(minimal(), wake_payload='{"reason":"r"}')
    env = environment(request, secrets, api_url=None, inherited={})
    assert env["PAPERCLIP_WAKE_PAYLOAD_JSON"] == '{"reason":"r"}'


def test_j18_the_workspace_has_its_variables() -> None:
    workspace = {
        "cwd": "/paperclip/w",
        "source": "project_primary",
        "strategy": "git_worktree",
        "workspaceId": "ws",
        "repoUrl": "https://git.example/r",
        "repoRef": "main",
        "branchName": "b",
        "worktreePath": "/paperclip/t",
        "agentHome": "/paperclip/home",
    }
    env = env_of(with_value(minimal(), "context.paperclipWorkspace", workspace))
    names = ("CWD", "SOURCE", "STRATEGY", "ID", "REPO_URL", "REPO_REF", "BRANCH", "WORKTREE_PATH")
    assert [env[f"PAPERCLIP_WORKSPACE_{name}"] for name in names] == list(workspace.values())[:-1]
    assert env["AGENT_HOME"] == "/paperclip/home"


def test_j18_linked_issues_are_listed_without_blanks() -> None:
    env = env_of(with_value(minimal(), "context.issueIds", ["a", " ", "b", "", "c"]))
    assert env["PAPERCLIP_LINKED_ISSUE_IDS"] == "a,b,c"


def test_j18_listings_are_json_and_empty_ones_are_absent() -> None:
    context = with_value(minimal(), "context.paperclipWorkspaces", [{"cwd": "/a"}])
    context = with_value(context, "context.paperclipRuntimeServiceIntents", [{"name": "db"}])
    context = with_value(context, "context.paperclipRuntimeServices", [])
    context = with_value(context, "context.paperclipRuntimePrimaryUrl", "https://preview.example")
    env = env_of(context)
    assert env["PAPERCLIP_WORKSPACES_JSON"] == '[{"cwd":"/a"}]'
    assert env["PAPERCLIP_RUNTIME_SERVICE_INTENTS_JSON"] == '[{"name":"db"}]'
    assert "PAPERCLIP_RUNTIME_SERVICES_JSON" not in env
    assert env["PAPERCLIP_RUNTIME_PRIMARY_URL"] == "https://preview.example"


def test_j18_the_api_key_is_the_run_token_and_the_api_url_is_inherited() -> None:
    env = env_of(with_value(minimal(), "authToken", "token"), PAPERCLIP_API_URL="http://paperclip:3100")
    assert (env["PAPERCLIP_API_KEY"], env["PAPERCLIP_API_URL"]) == ("token", "http://paperclip:3100")


# The prompt: rows J41 and J42.

RUN = RunKey(agent_id="agent-1", company_id="company-1", run_id="run-1")


def prompt_of(context: dict[str, Any], session: bool = False) -> tuple[str, dict[str, int]]:
    if session:
        context = with_value(context, "runtime.sessionParams", {"sessionId": "ses_1"})
    wake = {"fresh": "## Paperclip Wake Payload", "resumed": "## Paperclip Resume Delta"}
    request, _, source = opened(context, wake_prompt=wake)
    prompt = compose(source, resuming=request.runtime.session_params is not None, run=RUN)
    return prompt.text, prompt.metrics


TASK = with_value(minimal(), "context.paperclipTaskMarkdown", "\n the task \n")


def test_j41_the_task_is_in_the_prompt_trimmed() -> None:
    text, metrics = prompt_of(TASK)
    assert "\n\nthe task\n\n" in text
    assert metrics["taskMarkdownChars"] == len("the task")


def test_j41_without_a_task_its_metric_is_zero() -> None:
    assert prompt_of(minimal())[1]["taskMarkdownChars"] == 0


def test_j41_the_task_comes_after_the_wake_and_before_the_handoff() -> None:
    text, _ = prompt_of(with_value(TASK, "context.paperclipSessionHandoffMarkdown", "handoff"))
    assert text.index("## Paperclip Wake Payload") < text.index("the task") < text.index("handoff")


def test_j41_a_resumed_session_gets_the_delta_and_the_task_without_the_heartbeat() -> None:
    text, metrics = prompt_of(TASK, session=True)
    assert text == "## Paperclip Resume Delta\n\nthe task"
    assert metrics["heartbeatPromptChars"] == 0


def test_j42_resume_last_session_off_means_a_fresh_session() -> None:
    text, metrics = prompt_of(minimal(resumeLastSession=False, bootstrapPromptTemplate="bootstrap"), session=True)
    assert text.startswith("bootstrap\n\n## Paperclip Wake Payload\n\nYou are agent agent-1 (Ada).")
    assert metrics["heartbeatPromptChars"] > 0


def test_j42_resume_last_session_on_resumes() -> None:
    text, metrics = prompt_of(minimal(resumeLastSession=True, bootstrapPromptTemplate="bootstrap"), session=True)
    assert text == "## Paperclip Resume Delta"
    assert (metrics["bootstrapPromptChars"], metrics["heartbeatPromptChars"]) == (0, 0)


# The provider: rows E89 and E91.


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param("anthropic/claude-opus-4", "anthropic", id="E89-prefix"),
        pytest.param(" bedrock /claude", "bedrock", id="E89-padded"),
        pytest.param(" /model", None, id="E89-blank-prefix"),
        pytest.param("a/b/c", "a", id="E89-first-slash"),
        pytest.param("b", None, id="E89-no-slash"),
    ],
)
def test_the_provider_is_the_part_of_the_model_before_the_slash(model: str, expected: str | None) -> None:
    assert provider(model) == expected


@pytest.mark.parametrize(
    "model", [" ", "mystery", "gpt4", "gpt-5.5", "o3", "claude-sonnet-4-6", "opus", "gemini-2.5-pro"]
)
def test_e91_a_model_without_a_provider_is_refused(model: str) -> None:
    # A deviation: see docs/deviations.md.
    with pytest.raises(InvalidRequest, match=r"config\.model"):
        opened(minimal(model=model))
