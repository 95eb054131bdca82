"""What docs, docstrings and comments name is there."""

from tests.prose.names import stale, stale_in
from tests.prose.sources import Passage


def test_every_file_module_command_and_setting_that_a_text_names_is_there() -> None:
    found = stale()
    assert not found, "Correct these, or add what others have to FOREIGN in tests/prose/names.py:\n" + "\n".join(
        map(str, found)
    )


MISSING = [
    "see agent_runs/kube/nowhere.py",
    "see docs/nowhere.md",
    "see nowhere.py and `kube/nowhere.ts`",
    "[more](nowhere.md)",
    "`nowhere/` has the rest",
    "agent_runs.kube.nowhere decides",
    "as `agent_runs.kube.client.Nowhere` does",
    "`kube.nowhere` decides",
    "`a_name_without_code` decides",
    "python -m tests.nowhere",
    "python -m agent_runs.kube.client",
    "run ./dev nowhere",
    "run ./dev demo --nowhere",
    "run `agent-runs nowhere`",
    "    agent-runs list --nowhere",
    "set AGENT_RUNS_NOWHERE",
    "`test_nowhere` keeps it",
]


def test_a_name_that_is_not_there_is_found() -> None:
    assert [text for text in MISSING if not list(stale_in(Passage("docs/worker.md", 1, text)))] == []


PRESENT = [
    "see agent_runs/kube/client.py, docs/adr/0004 and tests/kube/",
    "see client.py and `kube/client.py`",
    "[more](temporal.md#cancel)",
    "`kube/` has the rest",
    "agent_runs.kube.client decides, as `agent_runs.kube.client.Cluster` does",
    "`kube.client` decides, and `str.isprintable()`",
    "python -m tests.histories.record, python -m venv",
    "./dev test -k name; ./dev demo --keep",
    "`agent-runs list --open`; agent-runs is a program",
    "AGENT_RUNS_MAX_RUNS and `_MAX_RUNS`",
    "an agent that runs; agent-runs; https://example.com/docs/nowhere.md",
]


def test_a_name_that_is_there_and_plain_prose_are_left_alone() -> None:
    assert [found for text in PRESENT for found in stale_in(Passage("docs/worker.md", 1, text))] == []


def test_a_package_names_its_own_modules() -> None:
    of_the_package = Passage("agent_runs/web/__init__.py", 1, "`pages` answers, `follower` does not")
    assert [name.name for name in stale_in(of_the_package)] == ["follower"]
