"""The driver and the real OpenCode as a server: the lines of `opencode run`, whatever is cut or killed."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_runs.pod.sidecar.drivers.lines import LEFT_OUT
from agent_runs.pod.sidecar.drivers.opencode_server import wire
from agent_runs.pod.sidecar.drivers.opencode_server.v1.server import Server
from tests.pod.driving import PASSWORD, Played, Served, bash, result, result_of, script, serving, steps_of, task
from tests.pod.interrupting import CUTS, address_of, killed_again_and_again, relaying, runs, until_a_tool_runs
from tests.support.saved_output import fold_chunks
from tests.transcript.captures import Capture

pytestmark = pytest.mark.slow

THINKS = {"reasoning": "First I look.", "text": "I look.", **bash("seq 3")}
SCENARIOS = {
    "failing tools": ("scenario/tool-fail", "hello"),
    "provider error": ("scenario/error:400", "hello"),
    "unknown model": ("scenario/no-such-model", "hello"),
    "several steps": ("scenario/script", script(THINKS, bash("true"), {"reasoning": "Done.", "text": "It is done."})),
    "big output": ("scenario/script", script(bash("seq 200000"), {"text": "word " * 10_000})),
    "two tools at once": (
        "scenario/script",
        script({"tools": bash("sleep 0.2")["tools"] + bash("echo fast")["tools"]}, {"text": "Both are done."}),
    ),
    "odd characters": (
        "scenario/script",
        script(bash("printf 'a\\0b\\377\\u2028'"), {"text": "\u2028 \U0001f600 \x01"}),
    ),
}

CAPTURED = (
    *("drop-once", "drop-tool-once", "empty", "reasoning", "text-big", "text-stdin", "text-weird"),
    *("error-400", "error-401", "error-404", "flaky-429-once", "flaky-500-once"),
    *("tool-bash", "tool-big-input", "tool-big-output", "tool-edit", "tool-fail", "tool-invalid"),
    *("tool-question", "tool-todo", "tool-write"),
)
"""Captures of `opencode run` without options, files or permissions of their own."""


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with serving(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Served]:
    """A server without the sessions of other tests, which every read of its journal would have."""
    async with serving(tmp_path) as server:
        yield server


def meaning(turn: Played) -> dict[str, Any]:
    """What Paperclip and the transcript keep of a turn."""
    names = ("summary", "events", "unparsed_lines", "clear_session", "last_context_tokens")
    return {**result_of(turn.report), **{name: getattr(turn.report, name) for name in names}}


@dataclass
class Kept:
    """A server's journal as it was sent, in small pieces."""

    content: bytes

    def open(self, *_: object) -> "Kept":
        return self

    def status(self) -> int:
        return 200

    def body(self) -> Iterator[bytes]:
        return (self.content[start : start + 100] for start in range(0, len(self.content), 100))

    def close(self) -> None:
        pass


async def test_the_journal_keeps_its_order_around_events_that_are_too_large(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await served.play(script(bash("seq 3"), {"text": "Done."}), model="fake/scenario/script")
    session = turn.end["session"]
    journal = await served.call("POST", "/sync/history", {}, raw=True)
    kept: Any = Kept(journal)
    whole = [each[1:] for each in Server(kept, "/").history({}) if each[0] == session]
    monkeypatch.setattr(wire, "MAX_EVENT", 600)
    bounded = [each[1:] for each in Server(kept, "/").history({}) if each[0] == session]
    assert [event[:2] for event in bounded] == [event[:2] for event in whole]
    assert {event[2] is LEFT_OUT for event in bounded} == {True, False}
    assert [event for event in bounded if event[2] is not LEFT_OUT] == [
        event for event, short in zip(whole, bounded, strict=True) if short[2] is not LEFT_OUT
    ]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_turn_has_the_lines_and_the_result_of_opencode_run(served: Served, scenario: str) -> None:
    name, prompt = SCENARIOS[scenario]
    ours, theirs = await served.play(prompt, model=f"fake/{name}"), await served.run(prompt, model=f"fake/{name}")
    assert ours.end["reason"] is None
    assert ours.end["code"] == theirs.end["code"]
    assert ours.counts == theirs.counts
    assert [[*event] for event in ours.of_run] == [[*event] for event in theirs.of_run]
    assert meaning(ours) == meaning(theirs)


@pytest.mark.parametrize("name", CAPTURED)
async def test_a_turn_has_usage_cost_and_verdict_of_a_captured_run_with_the_same_answers(
    served: Served, name: str
) -> None:
    captured = Capture(f"opencode/{name}")
    theirs = fold_chunks([captured.stdout], [captured.stderr], None).report(captured.end)
    ours = await served.play(script(*steps_of(captured)), model="fake/scenario/script")
    assert result_of(ours.report) == result_of(theirs)


async def test_a_session_is_resumed_and_only_the_new_turn_makes_lines(served: Served) -> None:
    first = await served.play(model="fake/scenario/tool-bash")
    second = await served.play(model="fake/scenario/echo", session=first.end["session"])
    theirs = await served.run(model="fake/scenario/echo", session=first.end["session"])
    assert second.end.pop("seq") > first.end.pop("seq")
    assert second.end == {"code": 0, "reason": None, "detail": "", "session": first.end["session"]}
    assert second.counts == theirs.counts
    assert json.loads(second.report.summary)["user"] == ["hello", "hello"]
    assert not {*first.parts} & {*second.parts}


@pytest.mark.parametrize("session", ["ses_20a788e2f001K4PrxPHVgRQ7xt", "nonsense"])
async def test_an_unknown_session_is_reported_before_anything_else(served: Served, session: str) -> None:
    latest = served.model.requests[-1]
    ours = await served.play(session=session)
    assert ours.end == {"code": 1, "reason": None, "detail": "Session not found", "session": session, "seq": None}
    assert ours.report.unknown_session
    assert ours.report.failure is not None
    assert ours.report.failure.code == "session_unavailable"
    assert served.model.requests[-1] is latest


async def test_a_session_that_opencode_2_has_continued_is_not_resumed_by_opencode_1(served: Served) -> None:
    """Its own copy would lack what OpenCode 2 has added, and nobody would say so."""
    first = await served.play(model="fake/scenario/text")
    latest = served.model.requests[-1]
    ours = await served.play(session=first.end["session"], session_version="2.0.15")
    assert ours.report.failure is not None
    assert (ours.report.unknown_session, ours.report.failure.code) == (True, "session_unavailable")
    said = "Session not found: OpenCode 2.0.15 has continued it, and this is OpenCode 1"
    assert ours.report.failure.message == said
    assert served.model.requests[-1] is latest


async def test_an_unknown_agent_is_replaced_by_the_default_one_as_by_run(served: Served) -> None:
    assert (await served.play(model="fake/scenario/text", agent="nobody")).report.failure is None


async def test_tools_that_run_are_shown_at_once_and_texts_as_they_grow(served: Served) -> None:
    slow = {"text": "word " * 400, "gap": 0.2}
    ours = await served.play(script({**slow, **bash("sleep 1")}, {"text": "It is done."}))
    kinds = [event["type"] for event in ours.events]
    assert kinds.index("tool_running") < kinds.index("tool_use")
    grown = [event for event in ours.events if event["type"] == "text_growth"]
    assert grown
    assert [event["length"] for event in grown] == sorted({event["length"] for event in grown})
    assert grown[-1]["length"] <= len("word " * 400)
    assert not any("text" in event for event in grown)
    assert ours.events[-1]["status"] == "idle"


USED = {"usage": {"prompt": 1000, "completion": 100}}


async def test_steps_of_sub_agents_are_used_and_change_nothing_else(alone: Served) -> None:
    prompt = script(task({**bash("echo part"), **USED}, {"text": "Part.", **USED}), {"text": "Done."})
    ours, theirs = await alone.play(prompt), await alone.run(prompt)
    assert len(ours.steps_of_subagents) == 2
    assert sorted(ours.steps_of_subagents) == await alone.journaled_steps_of_subagents(ours.end["session"])
    mine, run = meaning(ours), meaning(theirs)
    assert (mine.pop("steps"), run.pop("steps")) == (4, 2)
    usage, without = mine.pop("usage"), run.pop("usage")
    assert usage.input_tokens - without.input_tokens == 2000
    assert usage.output_tokens - without.output_tokens == 200
    assert mine.pop("cost_usd") > run.pop("cost_usd") > 0
    assert mine == run
    assert ours.counts == theirs.counts


async def test_a_sub_agent_that_is_resumed_in_a_later_turn_is_counted_from_there(alone: Served) -> None:
    first = await alone.play(script(task({"text": "Part.", **USED}), {"text": "Done."}))
    ((child, _),) = first.steps_of_subagents
    again = script(task({"text": "More.", **USED}, task_id=child), {"text": "Done again."})
    second = await alone.play(again, session=first.end["session"])
    steps = second.steps_of_subagents
    assert [each for each, _ in steps] == [child]
    assert sorted([*first.steps_of_subagents, *steps]) == await alone.journaled_steps_of_subagents(first.end["session"])


async def test_events_that_an_earlier_turn_has_read_are_not_read_again(alone: Served, tmp_path: Path) -> None:
    long = await alone.play(script(*[bash("seq 8000") for _ in range(10)]))
    assert len(await alone.call("POST", "/sync/history", {}, raw=True)) > 400_000
    async with relaying(alone.port) as relayed:
        address = address_of(relayed.port, tmp_path)
        turn = await alone.play(
            session=long.end["session"], read_to=long.end["seq"], server=address, model="fake/scenario/text"
        )
    assert (turn.end["code"], turn.counts["text"]) == (0, 1)
    assert relayed.received < 100_000


SUB_AGENTS = [
    {"tools": [call for each in pair for call in each["tools"]]}
    for pair in (
        [task(*[bash(f"seq {number}") for number in range(8)]), task(*[bash(f"seq {number}") for number in range(5)])],
        [task(*[bash(f"seq {number}") for number in range(9)])],
    )
]


@pytest.mark.timeout(900)
async def test_no_step_of_a_sub_agent_is_lost_or_doubled_by_cuts(alone: Served, tmp_path: Path) -> None:
    async with relaying(alone.port, longest=0.04) as relayed:
        address = address_of(relayed.port, tmp_path)
        while relayed.cuts < CUTS / 4:
            ours = await alone.play(script(*SUB_AGENTS), server=address)
            assert ours.end["code"] == 0
            assert len(ours.steps_of_subagents) == 25
            expected = await alone.journaled_steps_of_subagents(ours.end["session"])
            assert sorted(ours.steps_of_subagents) == expected


async def test_no_step_of_a_sub_agent_is_lost_or_doubled_by_a_driver_that_is_killed(alone: Served) -> None:
    turn = alone.turn(script(*SUB_AGENTS))
    assert await killed_again_and_again(alone, turn) > 3
    ours = result(turn)
    assert ours.end["code"] == 0
    assert len(ours.steps_of_subagents) == 25
    assert sorted(ours.steps_of_subagents) == await alone.journaled_steps_of_subagents(ours.end["session"])


async def test_a_server_that_falls_silent_before_it_gets_the_prompt_gets_none(served: Served, tmp_path: Path) -> None:
    async with relaying(served.port, unanswered=b"GET /agent?") as relayed:
        ours = await served.play("never sent", agent="build", server=address_of(relayed.port, tmp_path))
    assert relayed.cuts == 1
    assert (ours.end["code"], ours.end["reason"]) == (1, "server_not_answering")
    assert not any("never sent" in json.dumps(each) for each in served.model.requests)


async def test_an_abort_ends_although_the_server_hangs(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, asyncio.timeout(60):
        turn = server.turn(script({"text": "I wait.", **bash("sleep 60")}))
        driver = await server.start(turn, abort_seconds=1)
        await until_a_tool_runs(turn)
        server.process.send_signal(signal.SIGSTOP)
        driver.send_signal(signal.SIGTERM)
        assert await driver.wait() == 0
    ours = result(turn)
    assert (ours.end["code"], ours.end["reason"]) == (143, "aborted")


async def test_live_events_that_never_begin_are_no_answer() -> None:
    program = (
        "from agent_runs.pod.sidecar.drivers.opencode_server import stream; stream.SILENCE_SECONDS = 0.2; "
        "from agent_runs.pod.sidecar.drivers.opencode_server.wire import Wire, NoAnswer; "
        "from agent_runs.pod.sidecar.drivers.waiting import Waiter; import sys\n"
        "try: stream.Stream(Wire(int(sys.argv[1]), '', Waiter()), '/global/event')\n"
        "except NoAnswer as error: print(error)"
    )

    async def begin_only(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        await reading.readuntil(b"\r\n\r\n")
        writing.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reading.read()
        writing.close()

    async with await asyncio.start_server(begin_only, "127.0.0.1") as listening, asyncio.timeout(60):
        port = listening.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(port), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
    assert output == b"its live events do not begin\n"


async def test_a_line_that_was_cut_by_a_kill_is_written_whole(served: Served) -> None:
    first = await served.play(model="fake/scenario/tool-bash")
    turn = served.folder / f"turn-{served.turns}"
    (turn / "end").unlink()
    lines = (turn / "events").read_bytes()
    (turn / "events").write_bytes(lines[: len(lines) // 2])
    driver = await served.start(turn)
    assert await driver.wait() == 0
    assert result(turn).parts == first.parts
    assert result(turn).end == first.end


async def test_sigterm_aborts_the_turn_and_its_tools(served: Served) -> None:
    turn = served.turn(script({"text": "I wait.", **bash("sleep 600.14")}))
    driver = await served.start(turn)
    await until_a_tool_runs(turn)
    driver.send_signal(signal.SIGTERM)
    assert await driver.wait() == 0
    ours = result(turn)
    assert (ours.end["code"], ours.end["reason"]) == (143, "aborted")
    assert ours.counts == {"step_start": 1, "text": 1, "tool_use": 1, "error": 1}
    while runs("sleep 600.14"):  # noqa: ASYNC110 - it is no child of this process
        await asyncio.sleep(0.05)


async def test_a_server_that_never_comes_up_or_refuses_gets_no_prompt(served: Served, tmp_path: Path) -> None:
    absent = await served.play(server=str(tmp_path / "absent"), start_timeout=0.3)
    refusing = await served.play(password=PASSWORD + "x")
    gone = tmp_path / "gone"
    gone.write_text("opencode server listening on http://127.0.0.1:1\n")
    dead = await served.play(server=str(gone))
    ends = [(each.end["code"], each.end["reason"], each.output) for each in (absent, refusing, dead)]
    assert ends == [
        (1, "server_not_started", b""),
        (1, "server_refused", b""),
        (1, "server_not_answering", b""),
    ]


async def test_a_server_that_is_killed_in_the_middle_is_lost_and_the_turn_is_not_repeated(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        turn = server.turn(script({"text": "I wait.", **bash("sleep 60")}))
        driver = await server.start(turn)
        await until_a_tool_runs(turn)
        server.process.kill()
        assert await driver.wait() == 0
    ours = result(turn)
    assert (ours.end["code"], ours.end["reason"]) == (1, "server_lost")
    assert ours.counts == {"step_start": 1, "text": 1}


async def test_a_permission_is_rejected_and_names_the_failure_as_with_run(tmp_path: Path) -> None:
    async with serving(tmp_path, bash="ask") as server:
        prompt = script(bash("echo asked"), {"text": "unreachable"})
        ours, theirs = await server.play(prompt), await server.run(prompt)
    assert ours.end["code"] == theirs.end["code"] == 0
    assert ours.counts == theirs.counts
    assert meaning(ours) == meaning(theirs)
    assert ours.report.failure == theirs.report.failure
    rejected = [event for event in ours.events if event["type"] == "permission_rejected"]
    assert [(event["permission"], event["patterns"]) for event in rejected] == [("bash", "echo asked")]
