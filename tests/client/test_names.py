"""The names of agent and task in Temporal: what a start writes, and what the list of runs reads."""

import json
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription

from agent_runs.client.attach import attach
from agent_runs.client.names import NAME_LIMIT, Names, plain
from agent_runs.client.runs import summary_of
from agent_runs.client.settings import ClientSettings
from agent_runs.client.wake import Wake, build_wake
from agent_runs.contracts.identity import WORKFLOW_TYPE
from agent_runs.contracts.start import RunStart
from tests.conftest import FIXTURES
from tests.paperclip.contexts import SEALER, captured
from tests.support.cases import case

CASES: list[dict[str, Any]] = json.loads((FIXTURES / "names.json").read_text())
"""`adapter/tests/names.test.ts` reads the same file."""


def test_names_are_one_line_of_plain_text_whatever_the_context_has() -> None:
    for each in CASES:
        with case(each["case"]):
            assert Names.in_context(each["context"]) == Names(each["agent"], each["task"])


def test_a_name_that_is_cleaned_again_is_the_same() -> None:
    for each in CASES:
        for name in (each["agent"], each["task"]):
            assert plain(name) == name
            assert len(name) <= NAME_LIMIT


async def test_a_start_writes_the_names_into_memo_and_summary_and_the_list_reads_them(
    temporal: Client, queue: str
) -> None:
    for number, each in enumerate(CASES):
        with case(each["case"]):
            names = Names(each["agent"], each["task"])
            found = await started(temporal, ClientSettings(task_queue=queue), names, f"{queue}-{number}")
            assert await found.static_summary() == each["title"]
            assert (await summary_of(found)).names == names
            memo = {"agent_name": each["agent"], "task_name": each["task"]}
            written = {key: text for key, text in (await found.memo()).items() if key in memo}
            assert written == {key: name for key, name in memo.items() if name}


async def test_a_caller_can_leave_the_names_out(temporal: Client, queue: str) -> None:
    settings = ClientSettings.read({"AGENT_RUNS_NAMES": "off", "AGENT_RUNS_TASK_QUEUE": queue})
    found = await started(temporal, settings, Names("Ada", "ACM-7 A long task"), queue)
    assert await found.static_summary() == "agent-1 · task 1"
    assert set(await found.memo()) == {"caller", "task"}


async def test_a_memo_of_anything_else_holds_up_no_list(temporal: Client, queue: str) -> None:
    for number, wrong in enumerate((7, None, ["Ada"], {"a": "Ada"}, b"\xff", "\x1b[2J" * 10_000)):
        with case(repr(wrong)[:20]):
            memo = {"agent_name": wrong, "task_name": "ACM-7"}
            handle = await temporal.start_workflow(
                WORKFLOW_TYPE, id=f"agent-run:{queue}-{number}", task_queue=queue, memo=memo
            )
            summary = await summary_of(await handle.describe())
            assert len(summary.names.agent) <= NAME_LIMIT
            assert summary.names.agent.isprintable()
            assert summary.names.task == "ACM-7"
            await handle.terminate()


def test_a_wake_has_the_names_of_paperclips_context() -> None:
    raw = captured("ctx-1")
    assert build_wake(raw, SEALER).names == Names("Dummy One", "LIV-2 Second")


async def started(
    temporal: Client, settings: ClientSettings, names: Names, unique: str
) -> WorkflowExecutionDescription:
    """The description of a run that no worker takes, which is closed then."""
    start = RunStart(run_id=unique, agent_id="agent-1", company_id="acme", task="task_1", sealed="sealed")
    handle = (await attach(temporal, settings, Wake(start, names))).handle(temporal)
    found = await handle.describe()
    await handle.terminate()
    return found
