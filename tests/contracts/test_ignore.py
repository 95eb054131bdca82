"""What `workspaceIgnore` leaves out is what Git would leave out by the same patterns."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.ignore import LONGEST, expression
from agent_runs.contracts.request import TEXT_LIMIT
from tests.paperclip.contexts import minimal, opened

CASES = json.loads((Path(__file__).parents[1] / "fixtures/ignore.json").read_text())


def leaves_out(pattern: str, path: str) -> bool:
    parts, found = path.split("/"), re.compile(expression(pattern), re.DOTALL)
    return any(found.fullmatch("/".join(parts[:end])) for end in range(1, len(parts) + 1))


@pytest.mark.parametrize(("pattern", "path", "matches"), CASES["matches"])
def test_a_pattern_leaves_out_what_it_leaves_out_for_git(
    tmp_path: Path, pattern: str, path: str, matches: bool
) -> None:
    assert leaves_out(pattern, path) is matches
    if pattern == ".git":  # which Git itself never looks at
        return
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".git/info/exclude").write_text(f"{pattern}\n")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    asked = subprocess.run(["git", "check-ignore", "--quiet", "--no-index", path], cwd=tmp_path, check=False)
    assert (asked.returncode == 0) is matches


def ignored(value: Any) -> tuple[str, ...]:
    return opened(minimal(workspaceIgnore=value))[0].config.workspace_ignore


def test_a_text_area_has_a_pattern_in_each_line() -> None:
    assert ignored("# comment\n\n node modules \r\n*.log\n") == ("node modules", "*.log")
    assert ignored(["a", "  "]) == ("a",)
    assert ignored("") == ignored(None) == ()


@pytest.mark.parametrize(("pattern", "fault"), [*CASES["refused"], ("x" * 201, f"has more than {LONGEST} characters")])
def test_a_wrong_pattern_is_refused_by_name_before_the_run(pattern: str, fault: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ignored([pattern])
    assert refused.value.message.startswith("config.workspaceIgnore")
    assert fault in refused.value.message


def test_all_patterns_together_are_bounded() -> None:
    with pytest.raises(InvalidRequest, match=f"more than {TEXT_LIMIT} characters together"):
        ignored(["x" * 100] * 50)


def test_the_text_of_advanced_has_no_patterns_because_the_plugin_does_not_read_it() -> None:
    with pytest.raises(InvalidRequest, match=r"config\.advanced\.workspaceIgnore is not read here"):
        opened(minimal(advanced="workspaceIgnore: [a]"))
