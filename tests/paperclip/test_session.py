import pytest

from agent_runs.contracts.request import RunConfig, SessionParams, Workspace
from agent_runs.paperclip.session import resume, session_params, working_directory

STORED = SessionParams(session_id="ses_1", cwd="/paperclip/w")


@pytest.mark.parametrize("directory", ["/paperclip/w", "/paperclip/w/", "/paperclip/x/../w"])
def test_a_session_is_resumed_in_its_own_directory(directory: str) -> None:
    assert resume(STORED, directory, enabled=True).session == STORED


@pytest.mark.parametrize("directory", ["/paperclip", "/paperclip/w/sub", "/paperclip/W"])
def test_a_session_is_never_resumed_elsewhere(directory: str) -> None:
    decision = resume(STORED, directory, enabled=True)
    assert decision.session is None
    assert decision.reason is not None
    assert "/paperclip/w" in decision.reason


def test_a_wake_without_a_stored_session_gives_no_reason() -> None:
    decision = resume(None, "/paperclip", enabled=False)
    assert (decision.session, decision.reason) == (None, None)


def test_opencode_works_in_the_workspace_then_in_the_configured_directory_then_on_the_data_volume() -> None:
    config = RunConfig(model="a/b", cwd="/srv/")
    assert working_directory(Workspace(cwd="/paperclip/w/"), config) == "/paperclip/w"
    assert working_directory(Workspace(), config) == "/srv"
    assert working_directory(Workspace(), RunConfig(model="a/b")) == "/home/agent"


def test_session_parameters_bind_a_session_to_its_workspace() -> None:
    workspace = Workspace(cwd="/w", workspace_id="ws", repo_url="https://git.example/r", repo_ref="main")
    assert session_params("ses_1", workspace, RunConfig(model="a/b")).model_dump() == {
        "sessionId": "ses_1",
        "cwd": "/w",
        "workspaceId": "ws",
        "repoUrl": "https://git.example/r",
        "repoRef": "main",
    }


@pytest.mark.parametrize(
    ("stored", "agent", "resumed"),
    [
        (SessionParams(session_id="s", cwd="/w", agent="claude"), "claude", True),
        (SessionParams(session_id="s", cwd="/w", agent="claude"), "codex", False),
        (SessionParams(session_id="s", cwd="/w", agent="claude"), "opencode", False),
        (SessionParams(session_id="s", cwd="/w"), "opencode", True),
        (SessionParams(session_id="s", cwd="/w"), "claude", False),
        (SessionParams(session_id="s"), "claude", True),  # a bare id says nothing of its agent
        (SessionParams(session_id="s"), "opencode", True),
    ],
)
def test_a_session_is_resumed_only_by_the_agent_that_made_it(stored: SessionParams, agent: str, resumed: bool) -> None:
    decision = resume(stored, "/w", enabled=True, agent=agent)
    assert (decision.session is not None) == resumed
    assert resumed or f"the agent is {agent} now" in str(decision.reason)


def test_the_agent_of_a_session_is_stored_unless_it_is_opencode() -> None:
    stored = [session_params("s", Workspace(), RunConfig(model="a/b", agent=agent)) for agent in ("claude", "opencode")]
    assert [each.model_dump().get("agent") for each in stored] == ["claude", None]
    assert "agent" not in stored[1].model_dump()


@pytest.mark.parametrize("served", [True, False])
def test_a_session_that_opencode_2_has_continued_is_resumed_by_a_server_only(served: bool) -> None:
    stored = SessionParams(session_id="s", cwd="/w", agent_version="2.0.15")
    decision = resume(stored, "/w", enabled=True, served=served)
    assert (decision.session is not None) == served
    assert served or "OpenCode 2.0.15 has continued it" in str(decision.reason)
