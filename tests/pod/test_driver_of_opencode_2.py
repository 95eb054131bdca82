"""The driver and the real OpenCode 2 as a server: each line once, whatever is cut or killed."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_runs.agents.opencode import VERSIONS
from agent_runs.contracts.outcome import Report
from dev_stack.opencode_binary import VERSION_2
from tests.pod.driving import PASSWORD, Served, bash, result, result_of, script, serving, steps_of
from tests.pod.interrupting import address_of, relaying, runs, until_a_tool_runs
from tests.support.saved_output import fold_chunks
from tests.transcript.captures import Capture

pytestmark = pytest.mark.slow

USED = {"usage": {"prompt": 1000, "completion": 100}}
CAPTURED = (
    *("drop-once", "drop-tool-once", "reasoning", "text-stdin", "text-weird"),
    *("error-400", "error-401", "error-404", "flaky-429-once", "flaky-500-once"),
    *("tool-bash", "tool-big-output", "tool-fail", "tool-write"),
)
"""Captures of OpenCode 1 whose tools OpenCode 2 has, too."""


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with serving(tmp_path_factory.mktemp("served"), VERSION_2) as server:
        yield server


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, VERSION_2) as server:
        yield server


def subagent(*steps: dict[str, Any], **more: str) -> dict[str, Any]:
    """A step that gives a sub-agent a prompt, which makes these steps."""
    args = {"description": "a part of the work", "prompt": script(*steps), "agent": "general", **more}
    return {"tools": [{"name": "subagent", "args": args}]}


def code_of(report: Report) -> str | None:
    return report.failure.code if report.failure else None


@pytest.mark.parametrize("name", CAPTURED)
async def test_a_turn_has_usage_cost_and_verdict_of_a_captured_run_with_the_same_answers(
    served: Served, name: str
) -> None:
    captured = Capture(f"opencode/{name}")
    theirs = fold_chunks([captured.stdout], [captured.stderr], None).report(captured.end)
    ours = await served.play(script(*steps_of(captured)), model="fake/scenario/script")
    assert ours.end["reason"] is None
    assert result_of(ours.report) == result_of(theirs)
    assert ours.report.agent_version == VERSION_2


async def test_a_session_is_resumed_and_only_the_new_turn_makes_lines(served: Served) -> None:
    first = await served.play(model="fake/scenario/tool-bash")
    second = await served.play(model="fake/scenario/echo", session=first.end["session"])
    assert (second.end["code"], second.end["session"]) == (0, first.end["session"])
    assert json.loads(second.report.summary)["user"] == ["hello", "hello"]
    assert not {*first.parts} & {*second.parts}


@pytest.mark.parametrize("session", ["ses_20a788e2f001K4PrxPHVgRQ7xt", "nonsense"])
async def test_an_unknown_session_is_reported_before_anything_else(served: Served, session: str) -> None:
    await served.play(model="fake/scenario/text")
    latest = served.model.requests[-1]
    ours = await served.play(session=session)
    assert ours.end == {"code": 1, "reason": None, "detail": "Session not found", "session": session, "seq": None}
    assert (ours.report.unknown_session, code_of(ours.report)) == (True, "session_unavailable")
    assert served.model.requests[-1] is latest


async def test_unknown_names_are_the_failures_that_they_are_of_opencode_1(served: Served) -> None:
    model = await served.play(model="fake/scenario/no-such-model")
    agent = await served.play(model="fake/scenario/text", agent="nobody")
    assert (code_of(model.report), code_of(agent.report)) == ("model_unknown", None)


async def test_tools_that_run_are_shown_at_once_and_texts_as_they_grow(served: Served) -> None:
    slow = {"text": "word " * 400, "gap": 0.2}
    ours = await served.play(script({**slow, **bash("sleep 1")}, {"text": "It is done."}))
    kinds = [event["type"] for event in ours.events]
    assert kinds.index("tool_running") < kinds.index("tool_use")
    grown = [event for event in ours.events if event["type"] == "text_growth"]
    assert [event["length"] for event in grown] == sorted({event["length"] for event in grown}) != []
    assert not any("text" in event for event in grown)
    assert ours.events[-1]["status"] == "idle"


async def test_steps_of_sub_agents_are_used_and_change_nothing_else(served: Served) -> None:
    ours = await served.play(
        script(subagent({**bash("echo part"), **USED}, {"text": "Part.", **USED}), {"text": "Done."})
    )
    assert len(ours.steps_of_subagents) == 2
    assert (ours.report.steps, ours.report.usage.input_tokens, ours.report.usage.output_tokens) == (4, 2200, 240)
    assert (ours.report.summary, ours.report.tool_calls) == ("Done.", 1)


async def test_a_sub_agent_that_is_resumed_in_a_later_turn_is_counted_from_there(served: Served) -> None:
    first = await served.play(script(subagent({"text": "Part.", **USED}), {"text": "Done."}))
    ((child, _),) = first.steps_of_subagents
    again = script(subagent({"text": "More.", **USED}, sessionID=child), {"text": "Done again."})
    second = await served.play(again, session=first.end["session"])
    assert [each for each, _ in second.steps_of_subagents] == [child]
    assert not {*first.steps_of_subagents} & {*second.steps_of_subagents}


async def test_what_goes_on_in_the_background_is_of_the_turn(served: Served) -> None:
    """OpenCode 2 begins a new turn by itself when a command has ended that it left running."""
    (served.folder / "workspace" / "next").write_text(script({"text": "It is over."}))
    waits = {"tools": [{"name": "shell", "args": {"command": "sleep 2; cat next", "background": True}}]}
    ours = await served.play(script(waits, {"text": "It runs."}))
    assert (ours.end["code"], ours.report.summary) == (0, "It is over.")
    assert ours.counts == {"step_start": 3, "tool_use": 1, "text": 2, "step_finish": 3}
    assert ours.parts == await served.parts_of(ours.end["session"])


async def test_a_permission_that_nobody_can_give_is_named_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path, VERSION_2, bash="ask") as server:
        ours = await server.play(script(bash("echo asked"), {"text": "I go on."}))
    rejected = [event for event in ours.events if event["type"] == "permission_rejected"]
    assert [(event["permission"], event["patterns"]) for event in rejected] == [("shell", "echo asked")]
    assert (ours.end["code"], ours.report.summary, len(ours.report.tool_errors)) == (0, "I go on.", 1)


@pytest.mark.timeout(900)
async def test_no_step_of_a_sub_agent_is_lost_or_doubled_by_cuts(alone: Served, tmp_path: Path) -> None:
    parts = [subagent(*[bash(f"seq {number}") for number in range(count)])["tools"][0] for count in (8, 5)]
    async with relaying(alone.port, longest=0.04) as relayed:
        ours = await alone.play(
            script({"tools": parts}, {"text": "Done."}), server=address_of(relayed.port, tmp_path, is_opencode_1=False)
        )
    assert relayed.cuts > 3
    steps = ours.steps_of_subagents
    assert (ours.end["code"], len(steps), len({*steps})) == (0, 15, 15)


async def test_a_server_that_cannot_be_used_gets_no_prompt(served: Served, tmp_path: Path) -> None:
    async with relaying(served.port, unanswered=b"GET /api/agent?") as relayed:
        silent = await served.play("never sent", server=address_of(relayed.port, tmp_path, is_opencode_1=False))
    refusing = await served.play("never sent", password=PASSWORD + "x")
    unread = await served.play("never sent", config="/another/opencode.json")
    ends = [(each.end["code"], each.end["reason"], each.output) for each in (silent, refusing, unread)]
    assert ends == [(1, "agent_not_started", b"")] * 3
    assert unread.end["detail"] == "OpenCode did not take the configuration of the run"
    assert not any("never sent" in json.dumps(each) for each in served.model.requests)


async def test_a_version_that_nobody_has_tried_is_refused_by_name_before_the_prompt(
    served: Served, tmp_path: Path
) -> None:
    async def answer(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        await reading.readuntil(b"\r\n\r\n")
        body = b'{"version":"3.0.1"}'
        writing.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writing.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as listening:
        port = listening.sockets[0].getsockname()[1]
        ours = await served.play(server=address_of(port, tmp_path, is_opencode_1=False), versions=VERSIONS)
    assert ours.end["reason"] == "agent_version_unsupported"
    assert ours.end["detail"].startswith("OpenCode 3.0.1 is not supported: supported are 1.18.3 to 1.18.33 and 2.0.15")


async def test_sigterm_aborts_the_turn_and_its_tools(served: Served) -> None:
    turn = served.turn(script({"text": "I wait.", **bash("sleep 600.15")}))
    driver = await served.start(turn)
    await until_a_tool_runs(turn)
    driver.send_signal(signal.SIGTERM)
    assert await driver.wait() == 0
    ours = result(turn)
    assert (ours.end["code"], ours.end["reason"]) == (143, "aborted")
    assert ours.counts == {"step_start": 1, "text": 1, "tool_use": 1, "step_finish": 1, "error": 1}
    while runs("sleep 600.15"):  # noqa: ASYNC110 - it is no child of this process
        await asyncio.sleep(0.05)


async def test_a_server_that_is_killed_in_the_middle_is_lost_and_the_turn_is_not_repeated(tmp_path: Path) -> None:
    async with serving(tmp_path, VERSION_2) as server:
        turn = server.turn(script({"text": "I wait.", **bash("sleep 60")}))
        driver = await server.start(turn)
        await until_a_tool_runs(turn)
        with contextlib.suppress(ProcessLookupError):
            server.process.kill()
        assert await driver.wait() == 0
    ours = result(turn)
    assert (ours.end["code"], ours.end["reason"]) == (1, "server_lost")
    assert ours.counts == {"step_start": 1, "text": 1}
