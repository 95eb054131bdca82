"""The agents' programs are installed once, by the lock files that their images are built from."""

import asyncio
import json
from pathlib import Path

import pytest

from dev_stack.agent_programs import OVERRIDE, PROGRAMS, ProgramUnavailable, ensure_program, main

WORKING_NPM = """#!/bin/sh
echo call >> "$NPM_CALLS"
while [ "$1" != --prefix ]; do shift; done
test -f "$2/package-lock.json" && mkdir -p "$2/node_modules/pi-acp/dist" && touch "$2/node_modules/pi-acp/dist/index.js"
"""


@pytest.fixture
def npm(npm_on_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for npm."""
    npm_on_path.write_text(WORKING_NPM)
    monkeypatch.setenv(OVERRIDE, str(tmp_path / "programs"))
    return npm_on_path


async def test_many_callers_install_a_program_once(npm: Path, tmp_path: Path) -> None:
    homes = await asyncio.gather(*(ensure_program("pi") for _ in range(4)))
    assert len({*homes, await ensure_program("pi")}) == 1
    assert homes[0].parent == tmp_path / "programs"
    assert PROGRAMS["pi"].command(homes[0])[-1] == str(homes[0] / "node_modules/pi-acp/dist/index.js")
    assert npm.with_name("calls").read_text().count("call") == 1


def test_a_failed_installation_is_named_and_leaves_nothing(npm: Path, tmp_path: Path) -> None:
    npm.write_text("#!/bin/sh\necho 'npm error code ECONNREFUSED' >&2\nexit 1\n")
    with pytest.raises(ProgramUnavailable, match=r"npm could not install the packages of pi .*ECONNREFUSED"):
        asyncio.run(ensure_program("pi"))
    assert [entry.name for entry in (tmp_path / "programs").iterdir() if not entry.name.endswith(".lock")] == []


def test_the_command_reports_what_is_missing(npm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    npm.write_text("#!/bin/sh\nexit 1\n")
    assert main(["pi"]) == 1
    assert "Check the network" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["goose"])
    assert "no agent goose; choose from claude" in capsys.readouterr().err


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_is_pinned_to_one_version(name: str) -> None:
    wanted = json.loads((PROGRAMS[name].manifest / "package.json").read_text())["dependencies"]
    locked = json.loads((PROGRAMS[name].manifest / "package-lock.json").read_text())["packages"]
    assert wanted == {package: locked[f"node_modules/{package}"]["version"] for package in wanted}
