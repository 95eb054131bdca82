"""docs/compatibility.md names what CI runs, and nothing else."""

from pathlib import Path

import pytest

from agent_runs.agents.opencode import VERSIONS
from agent_runs.agents.profile import load
from deploy.images import images, opencode_2
from dev_stack.compatibility_page import PAGE_FILE, main, page_text, ran_by, versions_of_agents
from dev_stack.opencode_binary import NEWEST


def notes_of(page: str) -> str:
    return "".join(f"{name}\t{version}\n" for name, versions in ran_by(page).items() for version in versions)


def test_the_committed_page_says_that_both_ends_of_each_window_were_run() -> None:
    page = PAGE_FILE.read_text()
    assert page == page_text(ran_by(page)), "run: python -m dev_stack.compatibility_page NOTES"
    ran = ran_by(page)
    for title, versions in versions_of_agents().items():
        assert ran[title] == versions
    assert ran.keys() == {"OpenCode", *(each.title for each in load().values()), "Paperclip", "Temporal Server",
                          "Kubernetes", "PostgreSQL"}  # fmt: skip


def test_the_newest_supported_opencode_is_that_of_the_demos_and_the_images() -> None:
    newest = [newest for _, newest in VERSIONS]
    assert newest == [NEWEST[1], NEWEST[2]]
    assert newest == [images()[1].tag, opencode_2().tag]


@pytest.mark.parametrize(
    ("change", "code"), [({}, 0), ({"OpenCode\t1.18.3\n": ""}, 0), ({"Kubernetes\t": "Kubernetes\t9."}, 1)]
)
def test_a_page_that_does_not_name_what_ran_is_found(
    change: dict[str, str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = notes_of(PAGE_FILE.read_text())
    for old, new in change.items():
        assert old in notes
        notes = notes.replace(old, new)
    (tmp_path / "ran").write_text(notes)
    assert main(["--check", str(tmp_path / "ran")]) == code
    assert ("does not name what the tests ran" in capsys.readouterr().out) == bool(code)
