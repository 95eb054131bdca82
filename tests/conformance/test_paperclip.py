"""Behaviours that the existing adapters' tests pin: session codec, skills, environment, prompt. One row, one id."""

from typing import Any

import pytest

from contracts.identity import RunKey
from contracts.request import RuntimeSkill, SkillSync
from paperclip.environment import environment
from paperclip.prompt import compose
from paperclip.session import deserialize, display_id, serialize
from paperclip.skills import OPERATIONAL, snapshot
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


@pytest.mark.parametrize("codec", [decoded, serialize], ids=["S1", "S5"])
@pytest.mark.parametrize("raw", [None, "ses_1", 7, ["ses_1"], {}, {"cwd": "/w"}, {"sessionId": ""}, {"sessionId": " "}])
def test_without_a_session_id_there_is_no_session(codec: Any, raw: object) -> None:
    assert codec(raw) is None


@pytest.mark.parametrize("codec", [decoded, serialize], ids=["S2-S4", "S5"])
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
def test_a_session_is_read_in_every_spelling_and_written_in_one(codec: Any, raw: object, params: object) -> None:
    assert codec(raw) == params


def test_s5_a_decoded_session_is_written_as_it_was_read() -> None:
    assert serialize(deserialize(LEGACY)) == WHOLE


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"sessionId": "a"}, "a"),
        ({"session_id": "b"}, "b"),
        ({"sessionID": "c"}, "c"),
        ({"sessionID": "c", "session_id": "b", "sessionId": "a"}, "a"),
        ({"cwd": "/w"}, None),
        ({"sessionId": " "}, None),
        (None, None),
    ],
)
def test_s6_the_display_id_is_the_session_id(params: object, shown: str | None) -> None:
    assert display_id(params) == shown


@pytest.mark.parametrize("flag", [True, False, "true", None])
def test_s7_a_compaction_flag_is_dropped_both_ways(flag: object) -> None:
    # A deviation: see docs/deviations.md.
    assert decoded({"sessionId": "a", "needsCompactBeforeNextRun": flag}) == {"sessionId": "a"}
    assert serialize({"sessionId": "a", "needsCompactBeforeNextRun": flag}) == {"sessionId": "a"}


# The skills page: row S8.

OFFERED = tuple(
    RuntimeSkill(key=key, runtime_name=key.rpartition("/")[2], source=f"/skills/{key}")
    for key in ("zoo/z", OPERATIONAL, "acme/a")
)


def entries(*desired: str, installed: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    sync = SkillSync.model_validate({"desiredSkills": list(desired)})
    return {entry["key"]: entry for entry in snapshot(OFFERED, sync, installed)["entries"]}


def test_s8_without_skills_the_page_is_empty() -> None:
    page = snapshot((), SkillSync())
    assert (page["entries"], page["desiredSkills"], page["warnings"]) == ([], [], [])
    assert (page["supported"], page["mode"]) == (True, "ephemeral")


def test_s8_a_desired_skill_is_configured_the_others_are_available() -> None:
    found = entries("acme/a")
    assert (found["acme/a"]["state"], found["acme/a"]["desired"]) == ("configured", True)
    assert (found["zoo/z"]["state"], found["zoo/z"]["desired"]) == ("available", False)
    assert found["zoo/z"]["origin"] == "company_managed"


def test_s8_a_required_skill_says_so() -> None:
    entry = entries()[OPERATIONAL]
    assert (entry["state"], entry["origin"]) == ("configured", "paperclip_required")
    assert entry["originLabel"] == "Required by Paperclip"


def test_s8_a_desired_skill_that_nobody_offers_is_missing_with_a_warning() -> None:
    page = snapshot(OFFERED, SkillSync.model_validate({"desiredSkills": ["lost"]}))
    (entry,) = [entry for entry in page["entries"] if entry["key"] == "lost"]
    assert (entry["state"], entry["origin"]) == ("missing", "external_unknown")
    assert page["warnings"] == ['Desired skill "lost" is not available from the Paperclip skills directory.']


def test_s8_a_skill_installed_by_hand_is_listed_and_read_only() -> None:
    entry = entries(installed=("mine",))["mine"]
    assert (entry["state"], entry["origin"], entry["managed"], entry["readOnly"]) == (
        "external",
        "user_installed",
        False,
        True,
    )


def test_s8_a_managed_skill_is_not_listed_twice() -> None:
    assert list(entries(installed=("a", "z", "paperclip"))) == sorted(["acme/a", "zoo/z", OPERATIONAL])


def test_s8_skills_are_sorted_by_key() -> None:
    listed = list(entries("lost", installed=("mine",)))
    assert listed == sorted(listed)


# The environment: row J18.


def env_of(context: dict[str, Any], **inherited: str) -> dict[str, str]:
    request, secrets, _ = opened(context)
    return environment(request, secrets, api_url=None, inherited=inherited)


def test_j18_the_wake_payload_is_json() -> None:
    wake = {"reason": "r", "issue": {"id": "i"}}
    payload = env_of(with_value(minimal(), "context.paperclipWake", wake))["PAPERCLIP_WAKE_PAYLOAD_JSON"]
    assert payload.startswith('{"reason":"r",')


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
    context = with_value(
        context, "wakePrompt", {"fresh": "## Paperclip Wake Payload", "resumed": "## Paperclip Resume Delta"}
    )
    if session:
        context = with_value(context, "runtime.sessionParams", {"sessionId": "ses_1"})
    request, _, source = opened(context)
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


def test_j41_the_task_does_not_decide_about_the_resume_delta_and_stays_when_the_heartbeat_goes() -> None:
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
