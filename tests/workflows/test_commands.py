"""An edit that would break the replay of open runs changes the fingerprint; a harmless one does not."""

import difflib
import importlib
import re
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from agent_runs.client.replay import Difference, read, replay
from tests.histories.commands import SNAPSHOT, SOURCE, fingerprint
from tests.histories.record import HERE

NEXT_STEP = """
The order of the workflow's commands differs from tests/histories/commands.txt, so open runs might not replay.
Undo the change, or put the new order behind `workflow.patched` and record its histories (docs/replay.md), then accept:
    python -m tests.histories.commands
"""

Edit = tuple[str, str, str]
"""A file of the workflow, the text to replace in it, and the new text."""

PREPARATION = (SOURCE / "preparation.py").read_text()
START = PREPARATION.index("    profile = workflow.start_activity(")
SECOND = PREPARATION.index("    prompt = workflow.start_activity(")
PROFILE, PROMPT = PREPARATION[START:SECOND], PREPARATION[SECOND : PREPARATION.index("    try:", SECOND)]
SWAP: Edit = ("preparation.py", PROFILE + PROMPT, PROMPT + PROFILE)
FINALIZE = "        await asyncio.gather(_parse_transcript(run, attempt), _finish(run, attempt))\n"

BREAKING: dict[str, Edit] = {
    "two activities swapped": SWAP,
    "an activity left out": ("finalization.py", FINALIZE, "        await _finish(run, attempt)\n"),
    "an activity out of its condition": (
        "finalization.py",
        "    if attempt.job is None:\n        await _finish(run, attempt)\n    else:\n" + FINALIZE,
        FINALIZE.removeprefix("    "),
    ),
    "a further timer": ("finalization.py", FINALIZE, "        await workflow.sleep(1)\n" + FINALIZE),
    "a timer of asyncio": ("finalization.py", FINALIZE, "        await asyncio.sleep(1)\n" + FINALIZE),
    "a wait that gets a time-out": (
        "agent_run.py",
        "workflow.wait_condition(workflow.all_handlers_finished)",
        "workflow.wait_condition(workflow.all_handlers_finished, timeout=self._run.retention)",
    ),
    "a patch": (
        "finalization.py",
        FINALIZE,
        '        if workflow.patched("a change"):\n            await workflow.sleep(1)\n' + FINALIZE,
    ),
    "search attributes earlier": (
        "attempts.py",
        "    attempt.started_at = workflow.now()\n",
        "    run.show(Phase.RUNNING)\n    attempt.started_at = workflow.now()\n",
    ),
    "another activity": ("following.py", "activities.stop_agent", "activities.finish"),
    "an update with another name": ("agent_run.py", "name=updates.JOIN", 'name="enter"'),
    "a signal removed": ("agent_run.py", "    @workflow.signal(name=updates.COLLECTED)\n", ""),
    "a task that is awaited at once": (
        "following.py",
        'asyncio.create_task(workflow.sleep(limit, summary="grace"))',
        'await workflow.sleep(limit, summary="grace")',
    ),
    "a return before an activity": (
        "finalization.py",
        FINALIZE,
        "        if attempt.killed:\n            return\n" + FINALIZE,
    ),
}
HARMLESS: dict[str, Edit] = {
    "a comment": ("finalization.py", FINALIZE, "        # nobody reads this\n" + FINALIZE),
    "a variable's name": ("preparation.py", "creation", "creating"),
    "an activity's time-out": ("following.py", "timedelta(seconds=15)", "timedelta(seconds=20)"),
    "a longer time": (
        "following.py",
        "KILL_MARGIN: Final = timedelta(seconds=5)",
        "KILL_MARGIN: Final = timedelta(seconds=9)",
    ),
    "a timer's summary": ("following.py", 'summary="grace"', 'summary="grace period"'),
    "a docstring": ("following.py", '"""SIGTERM, then the grace', '"""First SIGTERM, then the grace'),
    "a condition in other words": ("finalization.py", "if attempt.job is None:", "if not attempt.job:"),
    "a further pure function": (
        "following.py",
        "def _silence_failure(",
        "def _twice(n: int) -> int:\n    return 2 * n\n\n\ndef _silence_failure(",
    ),
    "a layout": (
        "finalization.py",
        FINALIZE,
        FINALIZE.replace("(run, attempt)", "(\n            run, attempt\n        )"),
    ),
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
        pytest.fail("\n".join([NEXT_STEP, *changes]), pytrace=False)


@pytest.mark.parametrize("edit", BREAKING.values(), ids=list(BREAKING))
def test_an_edit_that_breaks_replay_changes_the_fingerprint(edit: Edit, tmp_path: Path) -> None:
    assert fingerprint(edited(edit, tmp_path)) != unedited()


@pytest.mark.parametrize("edit", HARMLESS.values(), ids=list(HARMLESS))
def test_an_edit_that_replay_does_not_see_leaves_the_fingerprint_alone(edit: Edit, tmp_path: Path) -> None:
    assert fingerprint(edited(edit, tmp_path)) == unedited()


def test_commands_cannot_hide_behind_another_name(tmp_path: Path) -> None:
    hidden = edited(
        ("activity_calls.py", "from temporalio import workflow", "from temporalio.workflow import sleep"), tmp_path
    )
    with pytest.raises(ValueError, match=r"activity_calls\.py: call `workflow"):
        fingerprint(hidden)


@pytest.fixture
def edited_workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Edit], type]:
    """The workflow's class with an edit, importable under a name of its own as the sandbox wants it."""

    def with_edit(edit: Edit) -> type:
        name = f"edited_{tmp_path.name.replace('-', '_')}"
        package = edited(edit, tmp_path).rename(tmp_path / name)
        for file in package.glob("*.py"):
            file.write_text(re.sub(r"from workflows\b", f"from {name}", file.read_text()))
        monkeypatch.syspath_prepend(tmp_path)
        module = importlib.import_module(f"{name}.agent_run")
        for loaded in [each for each in sys.modules if each.partition(".")[0] == name]:
            monkeypatch.setitem(sys.modules, loaded, sys.modules.pop(loaded))
        edited_class: type = module.AgentRunWorkflow
        return edited_class

    return with_edit


@pytest.mark.parametrize(
    ("edit", "expected", "found"),
    [
        ("two activities swapped", "activity introspect_pod", "activity bundle_prompt"),
        ("an activity left out", "activity parse_transcript", "activity finish"),
        ("a further timer", "ActivityTaskScheduled (parse_transcript)", "command Timer"),
    ],
)
async def test_a_breaking_edit_does_not_replay_either_and_the_replay_says_where(
    edited_workflow: Callable[[Edit], type], edit: str, expected: str, found: str
) -> None:
    history = read((HERE / "normal.json").read_text())
    difference = (await replay(history, workflow=edited_workflow(BREAKING[edit]))).difference
    assert difference is not None
    assert (difference.expected, difference.found) == (expected, found)
    if difference.event is not None:
        event = history.events[difference.event - 1]
        assert event.activity_task_scheduled_event_attributes.activity_type.name in expected


async def test_an_update_without_a_handler_is_found(edited_workflow: Callable[[Edit], type]) -> None:
    history = read((HERE / "joined.json").read_text())
    difference = (await replay(history, workflow=edited_workflow(BREAKING["an update with another name"]))).difference
    assert difference is not None
    assert (difference.expected, difference.found) == ("WorkflowExecutionUpdateAccepted", "no command")


async def test_a_timer_that_is_cancelled_in_the_history_only_is_found(
    edited_workflow: Callable[[Edit], type],
) -> None:
    history = read((HERE / "timeout.json").read_text())
    difference = (
        await replay(history, workflow=edited_workflow(BREAKING["a task that is awaited at once"]))
    ).difference
    assert difference is not None
    assert (difference.expected, difference.found) == ("TimerCanceled", "no command")


async def test_an_error_of_the_code_is_named_with_its_place_but_without_its_text(
    edited_workflow: Callable[[Edit], type], capfd: pytest.CaptureFixture[str]
) -> None:
    workflow = edited_workflow(("finalization.py", FINALIZE, '        raise ValueError("canary")\n'))
    difference = (await replay(read((HERE / "normal.json").read_text()), workflow=workflow)).difference
    assert isinstance(difference, Difference)
    assert difference.expected == "no error"
    assert difference.found.startswith("ValueError at finalization.py:")
    assert "canary" not in str(difference) + "".join(capfd.readouterr())
