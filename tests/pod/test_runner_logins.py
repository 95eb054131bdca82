"""Logins of `opencode auth`: those on the data volume are found in a pod, and new ones are kept there."""

import json
from pathlib import Path

import pytest

from dev_stack.opencode_binary import ensure_opencode
from tests.pod.harness import Runner

LOGIN = {"anthropic": {"type": "api", "key": "sk-ant-api03-0123456789"}}


@pytest.fixture
def folders(runner: Runner, tmp_path: Path) -> tuple[Path, Path]:
    """The folders of logins that the runner looks into, the agent's own one first; neither exists."""
    own, shared = tmp_path / "own/opencode", tmp_path / "shared/opencode"
    runner.options += ["--logins", str(own), "--logins", str(shared)]
    runner.env["XDG_DATA_HOME"] = str(tmp_path / "data")
    return own, shared


def log_in(folder: Path, text: str, file: str = "auth.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(f"{text}\n")


READ = 'cat "$XDG_DATA_HOME/opencode/auth.json"'


def test_the_agents_own_login_is_found_before_the_one_for_all(runner: Runner, folders: tuple[Path, Path]) -> None:
    own, shared = folders
    log_in(shared, "for all")
    assert runner.sh(READ).text("stdout") == [b"for all"]
    (runner.home / "data/opencode/auth.json").unlink()  # a pod's folder is new
    log_in(own, "own")
    assert runner.sh(READ).text("stdout") == [b"own"]


def test_a_new_login_is_kept_for_the_next_pod(runner: Runner, folders: tuple[Path, Path]) -> None:
    own, _ = folders
    runner.sh('echo new > "$XDG_DATA_HOME/opencode/auth.json"; echo mcp > "$XDG_DATA_HOME/opencode/mcp-auth.json"')
    assert (own / "auth.json").read_text() == "new\n"
    assert (own / "mcp-auth.json").read_text() == "mcp\n"


@pytest.mark.usefixtures("folders")
def test_a_run_without_any_place_for_logins_starts_all_the_same(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("a file where the folder should be")
    ended = runner.sh("echo works")
    assert (ended.text("stdout"), ended.last.error) == ([b"works"], None)


@pytest.mark.slow
async def test_opencode_itself_finds_the_login(runner: Runner, folders: tuple[Path, Path], tmp_path: Path) -> None:
    opencode = await ensure_opencode()
    own, _ = folders
    log_in(own, json.dumps(LOGIN))
    runner.env |= {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    listed = runner.run(str(opencode), "auth", "list")
    text = b"\n".join(listed.text("stderr") + listed.text("stdout"))
    assert b"Anthropic" in text
    assert b"1 credentials" in text
    logged_out = runner.run(str(opencode), "auth", "logout", "anthropic")
    assert logged_out.last.exit_code == 0
    assert json.loads((own / "auth.json").read_text()) == {}
