"""An edit that breaks the replay of open runs is seen in review; one that does not is not in the way."""

import difflib
import importlib
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from client.history import Difference, read, replay
from tests.histories.commands import SNAPSHOT, SOURCE, fingerprint
from tests.histories.record import GENERATION, HERE

NEXT = """
The workflow's commands have another order than the one that is committed. Open runs would not replay. Either
undo it, or put the new order behind `workflow.patched`, record histories of it (tests/histories/record.py), and accept:
    python -m tests.histories.commands
docs/replay.md tells how.
"""

Edit = tuple[str, str, str]
"""A file of the workflow, what it says, and what it is to say."""

PREPARE = (
    "        profiling = INTROSPECT_POD.start(\n            IntrospectPod(run=key.run, config=request.config), "
    '"what the agent\'s pod inherits"\n        )\n'
)
BUNDLE = (
    "        bundling = BUNDLE_PROMPT.start(\n"
    "            BundlePrompt(attempt=key, config=request.config, resuming=attempt.session is not None),\n"
    '            "instructions, skills and wake into a Secret",\n        )\n'
)
SWAP: Edit = ("agent_run.py", PREPARE + BUNDLE, BUNDLE + PREPARE)
JUDGE = "        if attempt.job is not None:\n            attempt.report = await self._parsed(attempt)\n"

BREAKING: dict[str, Edit] = {
    "two steps swapped": SWAP,
    "a step left out": ("agent_run.py", JUDGE, ""),
    "a step out of its condition": ("agent_run.py", JUDGE, "        attempt.report = await self._parsed(attempt)\n"),
    "a timer more": ("agent_run.py", JUDGE, "        await workflow.sleep(1)\n" + JUDGE),
    "a timer of asyncio": ("agent_run.py", JUDGE, "        await asyncio.sleep(1)\n" + JUDGE),
    "a wait that gets a time-out": (
        "agent_run.py",
        "workflow.wait_condition(workflow.all_handlers_finished)",
        "workflow.wait_condition(workflow.all_handlers_finished, timeout=patience)",
    ),
    "a patch without its condition": ("agent_run.py", "workflow.patched(PROMISES)", "True"),
    "a patch with another id": ("agent_run.py", '"deadlines, budgets and lingering"', '"deadlines"'),
    "search attributes earlier": (
        "agent_run.py",
        "        attempt.began = workflow.now()\n",
        "        self._show(self._card.at(Phase.RUNNING))\n        attempt.began = workflow.now()\n",
    ),
    "another activity": ("steps.py", '"stop_agent"', '"halt_agent"'),
    "an update with another name": ("agent_run.py", "name=talk.JOIN", 'name="enter"'),
    "a signal gone": ("agent_run.py", "    @workflow.signal(name=talk.COLLECTED)\n", ""),
    "a task that is awaited at once": (
        "agent_run.py",
        'asyncio.create_task(workflow.sleep(self._grace + KILLED, summary="grace"))',
        'await workflow.sleep(self._grace + KILLED, summary="grace")',
    ),
    "a way out before a step": ("agent_run.py", JUDGE, "        if attempt.forced:\n            return\n" + JUDGE),
}
HARMLESS: dict[str, Edit] = {
    "a comment": ("agent_run.py", JUDGE, "        # nobody reads this\n" + JUDGE),
    "a variable's name": ("agent_run.py", "profiling", "inheriting"),
    "a step's constant": ("steps.py", "API_CALLS", "CALLS"),
    "a longer time": ("agent_run.py", "KILLED: Final = timedelta(seconds=5)", "KILLED: Final = timedelta(seconds=9)"),
    "a timer's text": ("agent_run.py", 'summary="grace"', 'summary="the grace"'),
    "a docstring": ("clocks.py", '"""A clock ended before its step."""', '"""Too late."""'),
    "a condition in other words": ("agent_run.py", "if attempt.job is not None:", "if attempt.job:"),
    "a pure function more": (
        "clocks.py",
        "def _silent(",
        "def _twice(n: int) -> int:\n    return 2 * n\n\n\ndef _silent(",
    ),
    "a layout": ("agent_run.py", JUDGE, JUDGE.replace("(attempt)", "(\n                attempt\n            )")),
}


def edited(edit: Edit, folder: Path) -> Path:
    """A copy of the workflow's modules with one edit."""
    file, old, new = edit
    copy = shutil.copytree(SOURCE, folder / "edited", ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert old in text, f"{file} has changed: this test edits {old!r}"
    (copy / file).write_text(text.replace(old, new))
    return copy


@cache
def unedited() -> str:
    return fingerprint()


def test_the_commands_are_those_that_were_accepted() -> None:
    accepted, found = SNAPSHOT.read_text(), fingerprint()
    if accepted != found:
        changes = difflib.unified_diff(
            accepted.splitlines(), found.splitlines(), "commands.txt", "workflows/", lineterm=""
        )
        pytest.fail("\n".join([NEXT, *changes]), pytrace=False)


@pytest.mark.parametrize("edit", BREAKING.values(), ids=list(BREAKING))
def test_an_edit_that_breaks_replay_changes_the_fingerprint(edit: Edit, tmp_path: Path) -> None:
    assert fingerprint(edited(edit, tmp_path)) != unedited()


@pytest.mark.parametrize("edit", HARMLESS.values(), ids=list(HARMLESS))
def test_an_edit_that_replay_does_not_see_leaves_the_fingerprint_alone(edit: Edit, tmp_path: Path) -> None:
    assert fingerprint(edited(edit, tmp_path)) == unedited()


def test_commands_cannot_hide_behind_another_name(tmp_path: Path) -> None:
    hidden = edited(("clocks.py", "from temporalio import workflow", "from temporalio.workflow import sleep"), tmp_path)
    with pytest.raises(ValueError, match=r"clocks\.py: call `workflow"):
        fingerprint(hidden)


@pytest.fixture
def edited_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Edit], type]:
    """The workflow's class with an edit, importable under a name of its own as the sandbox wants it."""

    def made(edit: Edit) -> type:
        name = f"edited_{tmp_path.name.replace('-', '_')}"
        shutil.copy(edited(edit, tmp_path) / "agent_run.py", tmp_path / f"{name}.py")
        monkeypatch.syspath_prepend(tmp_path)
        story = importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, name, story)
        kind: type = story.AgentRunWorkflow
        return kind

    return made


@pytest.mark.parametrize(
    ("edit", "expected", "found"),
    [
        ("two steps swapped", "activity introspect_pod", "activity bundle_prompt"),
        ("a step left out", "activity parse_transcript", "activity finish"),
        ("a timer more", "activity parse_transcript", "timer"),
        ("a patch without its condition", "patch 'deadlines, budgets and lingering'", "activity introspect_pod"),
    ],
)
async def test_a_breaking_edit_does_not_replay_either_and_the_replay_says_where(
    edited_story: Callable[[Edit], type], edit: str, expected: str, found: str
) -> None:
    history = read((HERE / GENERATION / "normal.json").read_text())
    answer = await replay(history, workflow=edited_story(BREAKING[edit]))
    assert answer.difference is not None
    assert (answer.difference.expected, answer.difference.found) == (expected, found)
    event = history.events[answer.difference.event - 1]
    assert event.event_id == answer.difference.event
    assert str(event.activity_task_scheduled_event_attributes.activity_type.name) in expected


async def test_an_update_that_lost_its_handler_is_found(edited_story: Callable[[Edit], type]) -> None:
    history = read((HERE / GENERATION / "joined.json").read_text())
    difference = (await replay(history, workflow=edited_story(BREAKING["an update with another name"]))).difference
    assert difference is not None
    assert (difference.expected, difference.found) == ("update accepted", "nothing")


async def test_an_error_of_the_code_is_named_with_its_place_but_without_its_text(
    edited_story: Callable[[Edit], type], capfd: pytest.CaptureFixture[str]
) -> None:
    story = edited_story(("agent_run.py", JUDGE, '        raise ValueError("canary")\n'))
    difference = (await replay(read((HERE / "normal.json").read_text()), workflow=story)).difference
    assert isinstance(difference, Difference)
    assert difference.expected == "activity parse_transcript"
    assert difference.found.startswith(f"an error 'ValueError at {story.__module__}.py:")
    assert "canary" not in str(difference) + "".join(capfd.readouterr())
