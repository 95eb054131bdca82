"""A configuration in the agent's home, which OpenCode would prefer to the run's."""

import json
import os
from pathlib import Path

import pytest

from dev_stack.opencode_binary import ensure_opencode
from tests.pod.harness import Runner

SAID = [b"runner.sh: ~/.opencode is not used, it is in ~/.opencode-unused"]
LIST = 'cd "$HOME"; find .opencode .opencode-unused 2>/dev/null | sort'


@pytest.fixture
def home(runner: Runner, tmp_path: Path) -> Path:
    """The agent's home; the run wants no configuration but its own."""
    folder = tmp_path / "agent"
    folder.mkdir()
    runner.env |= {"HOME": str(folder), "OPENCODE_DISABLE_PROJECT_CONFIG": "1"}
    return folder


def write(file: Path, text: str = "{}") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize("name", ["opencode.json", "opencode.jsonc", "agent/build.md", "plugin/own.js", ".gitignore"])
def test_it_is_moved_away_and_programs_stay(runner: Runner, home: Path, name: str) -> None:
    write(home / ".opencode-unused/older")
    write(home / ".opencode" / name)
    write(home / ".opencode/bin/opencode")
    ended = runner.sh(LIST)
    lines = [line.decode() for line in ended.text("stdout")]
    assert f".opencode-unused/{name}" in lines
    assert [line for line in lines if "unused" not in line] == [
        ".opencode",
        ".opencode/bin",
        ".opencode/bin/opencode",
    ]
    assert ".opencode-unused/older" not in lines
    assert ended.text("stderr") == SAID


def test_a_link_is_moved_and_what_it_leads_to_stays(runner: Runner, home: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere/opencode.json")
    (home / ".opencode").symlink_to(tmp_path / "elsewhere")
    assert runner.sh(LIST).text("stdout") == [b".opencode-unused"]
    assert (tmp_path / "elsewhere/opencode.json").exists()


def test_a_folder_without_permissions_is_moved_too(runner: Runner, home: Path) -> None:
    if os.geteuid() == 0:  # without capabilities root has to keep to permissions, too
        runner.wrapper = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    write(home / ".opencode/opencode.json")
    write(home / ".opencode-unused/closed/older")
    for folder in (".opencode-unused/closed", ".opencode-unused", ".opencode", "."):
        (home / folder).chmod(0o500)
    ended = runner.sh('ls -A "$HOME" "$HOME/.opencode-unused" | sort')
    assert {b".opencode-unused", b"opencode.json"} <= {*ended.text("stdout")}
    assert not {b".opencode", b"closed"} & {*ended.text("stdout")}


@pytest.mark.parametrize("what", ["programs only", "the run wants such a configuration"])
def test_what_is_permitted_stays(runner: Runner, home: Path, what: str) -> None:
    if what == "programs only":
        write(home / ".opencode/bin/tool")
    else:
        write(home / ".opencode/opencode.json")
        del runner.env["OPENCODE_DISABLE_PROJECT_CONFIG"]
    before = sorted(home.rglob("*"))
    assert runner.sh("true").text("stderr") == []
    assert sorted(home.rglob("*")) == before


@pytest.mark.slow
async def test_an_agent_cannot_permit_itself_what_its_operator_denies(
    runner: Runner, home: Path, tmp_path: Path
) -> None:
    opencode = await ensure_opencode()
    write(tmp_path / "run.json", json.dumps({"permission": {"bash": "deny"}}))
    write(home / ".opencode/opencode.json", json.dumps({"permission": {"bash": "allow"}}))
    runner.env |= {"OPENCODE_CONFIG": str(tmp_path / "run.json"), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    runner.env |= {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "TMPDIR": str(tmp_path)}
    ended = runner.run(str(opencode), "debug", "config")
    assert json.loads(b"\n".join(ended.text("stdout")))["permission"] == {"bash": "deny"}
