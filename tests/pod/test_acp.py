"""The driver of agents that speak the Agent Client Protocol, with recorded conversations of the five real ones."""

import asyncio
import json
import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from agent_runs.contracts.outcome import Report
from agent_runs.pod.sidecar.drivers import inbox
from agent_runs.pod.sidecar.drivers.acp import drive
from agent_runs.pod.sidecar.drivers.acp.mapping import GROWING, HISTORY
from agent_runs.pod.sidecar.drivers.acp.turn import State
from tests.conftest import UNKNOWN_SESSION
from tests.pod.acp import CAPTURES, PROFILES, Played, Stage, read, recorded, report

FILE_USAGE = {"pi"}
"""Agents whose tokens are in files, which a recording does not have."""
STEERING = "_session/steering"
MESSAGE = {"id": "m1", "by": "ada", "text": "the word is heron"}


def code(ended: Played | Report) -> str | None:
    judged = ended.report if isinstance(ended, Played) else ended
    return judged.failure.code if judged.failure else None


def methods(stage: Stage) -> list[str | None]:
    """Of all that the agent has got."""
    return [message.get("method") for message in stage.received]


def prompts(stage: Stage) -> int:
    return methods(stage).count("session/prompt")


async def test_a_turn_with_a_tool_has_the_lines_of_opencode_run(name: str, tmp_path: Path) -> None:
    stage = recorded(tmp_path, name, "tool-bash")
    ended = await stage.play()
    assert (ended.end["code"], ended.end["reason"], ended.code) == (0, None, 0)
    step = ["step_start", "tool_running", "tool_use", "step_finish"]
    assert ended.kinds == [*step, "step_start", "text", "step_finish"]
    assert ended.text == "The command printed its greeting."
    assert code(ended) is None
    assert ended.report.session_id == ended.end["session"]
    assert (ended.report.steps, ended.report.tool_calls) == (2, 1)
    assert ended.report.usage.input_tokens == (0 if name in FILE_USAGE else 200)
    contexts = {"claude": 120, "codex": 120, "gemini": 200, "qwen": 100, "pi": 120}  # of Gemini, that of the whole turn
    assert ended.report.last_context_tokens == contexts[name]
    (tool,) = ended.of("tool_use")
    assert "echo hello-from-bash" in json.dumps(tool["part"]["state"])
    assert tool["acp"]["params"]["update"]["status"] == "completed"


async def test_the_report_has_the_version_that_the_agent_says(name: str, tmp_path: Path) -> None:
    said = re.search(r'"agentInfo": {[^}]*"version": "([^"]+)"', (CAPTURES / name / "text.jsonl").read_text())
    ended = await recorded(tmp_path, name, "text").play()
    assert said is not None
    assert ended.report.agent_version == said[1]


async def test_a_file_that_a_tool_has_written_is_a_completed_tool_and_nobody_was_asked(
    name: str, tmp_path: Path
) -> None:
    ended = await recorded(tmp_path, name, "tool-write").play()
    assert (code(ended), ended.report.tool_calls) == (None, 1)
    (tool,) = ended.of("tool_use")
    assert "written by the fake model" in json.dumps(tool["part"]["state"])
    assert tool["part"]["state"]["status"] == "completed"
    assert "session/request_permission" not in (CAPTURES / name / "tool-write.jsonl").read_text()


async def test_tokens_and_cost_are_those_of_the_turn(name: str, tmp_path: Path) -> None:
    ended = await recorded(tmp_path, name, "text").play()
    used = ended.report.usage
    shares = (used.input_tokens, used.cached_input_tokens, used.output_tokens, used.reasoning_tokens)
    expected = {
        "claude": (600, 400, 50, 0),
        "gemini": (1000, 0, 40, 0),
        "qwen": (600, 400, 50, 10),
        "codex": (600, 400, 50, 10),
    }
    assert shares == expected.get(name, (0, 0, 0, 0))
    assert str(ended.report.cost_usd) == ("0.00428" if name == "claude" else "None")
    assert ended.kinds == ["step_start", "reasoning", "text", "step_finish"]


def without_growing(update: dict[str, Any]) -> dict[str, Any]:
    """An update without what the end of its text or its tool repeats whole."""
    meta = {name: value for name, value in update.get("_meta", {}).items() if name != "terminal_output"}
    return {name: value for name, value in update.items() if name not in {*GROWING, "_meta"}} | {"_meta": meta}


async def test_every_message_of_the_turn_is_in_a_line(name: str, tmp_path: Path) -> None:
    ended = await recorded(tmp_path, name, "tool-bash").play()
    kept = [each for line in ended.events if isinstance(each := line.get("acp"), dict)]
    sent = [json.loads(line) for line in (CAPTURES / name / "tool-bash.jsonl").read_text().splitlines()]
    messages = [line["message"] for line in sent if line["to"] == "client"]
    for message in messages[: messages.index(next(m for m in messages if "stopReason" in json.dumps(m))) + 1]:
        update = message.get("params", {}).get("update", {})
        if update.get("sessionUpdate") in ("agent_message_chunk", "agent_thought_chunk") and update["content"]["text"]:
            assert update["content"]["text"] in json.dumps(ended.events, ensure_ascii=False)
        elif update.get("sessionUpdate") in HISTORY:
            updates = [each["params"]["update"] for each in kept if each.get("method") == "session/update"]
            assert without_growing(update) in map(without_growing, updates)
        elif "method" in message:
            assert {key: value for key, value in message.items() if key != "jsonrpc"} in kept
        else:
            assert message.get("result") in [each.get("result") for each in kept]


async def test_a_resumed_session_makes_lines_of_the_new_turn_only(name: str, tmp_path: Path) -> None:
    lines = [json.loads(line)["message"] for line in (CAPTURES / name / "load-2.jsonl").read_text().splitlines()]
    session = next(line["params"]["sessionId"] for line in lines if line.get("method") == "session/load")
    stage = recorded(tmp_path, name, "load-2", session=session)
    ended = await stage.play()
    assert ended.end == {"code": 0, "reason": None, "detail": "", "session": session, "seq": None}
    assert ended.kinds == ["step_start", "text", "step_finish"]
    assert ended.text.count('"messages"') == 1
    (left_out,) = [line for line in ended.of("acp_update") if "repeat the session" in json.dumps(line)]
    assert left_out["acp"]["count"] >= 2
    assert code(ended) is None


async def test_an_unknown_session_is_reported_before_anything_else(name: str, tmp_path: Path) -> None:
    stage = recorded(tmp_path, name, "load-unknown", session=UNKNOWN_SESSION)
    ended = await stage.play()
    assert ended.end == {
        "code": 1,
        "reason": None,
        "detail": "Session not found",
        "session": UNKNOWN_SESSION,
        "seq": None,
    }
    assert (code(ended), ended.report.unknown_session) == ("session_unavailable", True)
    assert prompts(stage) == 0


async def test_a_session_of_an_agent_that_loads_none_is_unknown(tmp_path: Path) -> None:
    stage = recorded(tmp_path / "stage", "claude", "text", session=UNKNOWN_SESSION)
    capture = tmp_path / "capture.jsonl"
    capture.write_text(
        (CAPTURES / "claude" / "text.jsonl").read_text().replace('"loadSession": true', '"loadSession": false')
    )
    stage.command[-2] = str(capture)
    ended = await stage.play()
    assert (code(ended), prompts(stage)) == ("session_unavailable", 0)


@pytest.mark.parametrize(
    ("agent", "case", "failure"),
    [
        *((agent, "error-401", "provider_credentials") for agent in ("claude", "codex", "gemini", "qwen")),
        *((agent, "error-429-3600", "provider_quota") for agent in ("claude", "gemini")),
        ("codex", "error-429", "provider_quota"),
        *((agent, "error-400", "provider_rejected") for agent in ("claude", "codex", "gemini", "qwen")),
        *((agent, "error-500", "provider_unavailable") for agent in ("claude", "codex")),
        ("claude", "model-unknown", "model_unknown"),
    ],
)
async def test_a_provider_error_names_the_failure(agent: str, case: str, failure: str, tmp_path: Path) -> None:
    ended = await recorded(tmp_path, agent, case).play()
    assert (ended.end["code"], ended.end["reason"], ended.code) == (1, None, 1)
    assert code(ended) == failure


async def test_an_extension_of_the_protocol_is_asked_for_as_the_profile_says(tmp_path: Path) -> None:
    stage = recorded(tmp_path, "codex", "text")
    await stage.play()
    assert stage.received[0]["params"]["clientCapabilities"]["_meta"] == PROFILES["codex"]["client_meta"]


async def test_a_turn_that_went_well_after_a_warning_is_no_failure(tmp_path: Path) -> None:
    stage = recorded(tmp_path / "stage", "codex", "text")
    capture, warning = tmp_path / "capture.jsonl", {"severity": "warning", "title": "unexpected status 503"}
    noted = json.dumps({"jetbrains": {"air": {"sessionFailure": warning}}})[:-1]
    well = (CAPTURES / "codex" / "text.jsonl").read_text()
    capture.write_text(well.replace('"_meta": {"quota"', f'"_meta": {noted}, "quota"'))
    stage.command[-2] = str(capture)
    assert code(await stage.play()) is None


async def test_the_error_that_pi_tells_its_session_only_names_the_failure(tmp_path: Path) -> None:
    stage = recorded(tmp_path, "pi", "error-401")
    session = json.loads((CAPTURES / "pi" / "error-401.jsonl").read_text().splitlines()[3])["message"]["result"]
    file = tmp_path / "home/.pi/agent/sessions/--work--" / f"2026_{session['sessionId']}.jsonl"
    file.parent.mkdir(parents=True)
    said = {"role": "assistant", "stopReason": "error", "errorMessage": "401: Incorrect API key", "usage": {"input": 5}}
    file.write_text("".join(json.dumps({"message": each}) + "\n" for each in ({"role": "user"}, said)))
    stage.environment["HOME"] = str(tmp_path / "home")
    ended = await stage.play()
    assert code(ended) == "provider_credentials"
    assert ended.report.usage.input_tokens == 5


@pytest.mark.parametrize(("agent", "case"), [("claude", "ask-tool-write"), ("gemini", "ask-tool-write")])
async def test_a_permission_is_given_as_the_profile_says(agent: str, case: str, tmp_path: Path) -> None:
    stage = recorded(tmp_path, agent, case)
    ended = await stage.play()
    (answered,) = [each for each in stage.received if "outcome" in json.dumps(each)]
    assert answered["result"]["outcome"]["optionId"] in ("allow-once", "proceed_once")
    assert code(ended) is None
    assert not ended.of("permission_rejected")


@pytest.mark.parametrize(
    ("agent", "option", "failure"),
    [
        ("claude", "reject", None),
        ("codex", "cancel", "permission_blocked"),
        ("gemini", "cancel", None),
        ("qwen", "cancel", "permission_blocked"),
    ],
)
async def test_a_permission_is_rejected_as_the_profile_says(
    agent: str, option: str, failure: str | None, tmp_path: Path
) -> None:
    stage = recorded(tmp_path, agent, "ask-tool-reject", profile={"permissions": "reject"})
    ended = await stage.play()
    (answered,) = [each for each in stage.received if "outcome" in json.dumps(each)]
    assert answered["result"]["outcome"] == {"outcome": "selected", "optionId": option}
    (rejected,) = ended.of("permission_rejected")
    assert rejected["permission"] == "edit"
    assert "written.txt" in rejected["patterns"]
    assert code(ended) == failure


def question_of(stage: Stage) -> dict[str, Any]:
    found = (json.loads(line) for line in stage.events.splitlines() if b'"question_asked"' in line)
    question: dict[str, Any] = next(found)["question"]
    return question


@pytest.mark.parametrize(
    ("agent", "case", "answers", "option"),
    [
        ("claude", "ask-tool-write", [["first"]], "allow-once"),
        ("gemini", "ask-tool-write", [["first"]], "proceed_always"),
        ("claude", "ask-tool-reject", [], "reject"),
        ("gemini", "ask-tool-reject", [], "cancel"),
    ],
)
@pytest.mark.parametrize("killed", [False, True], ids=["one driver", "a killed driver"])
async def test_a_person_gives_or_refuses_a_permission(
    agent: str, case: str, answers: list[list[str]], option: str, killed: bool, tmp_path: Path
) -> None:
    stage = recorded(tmp_path, agent, case, profile={"permissions": "ask"})
    async with stage.running():
        driver = await stage.driver()
        await stage.until(b'"question_asked"')
        question = question_of(stage)
        labels = [each["label"] for each in question["fields"][0]["options"]]
        if killed:
            driver.kill()
            await driver.wait()
            driver = await stage.driver()
        given = [[labels[0]] for _ in answers]
        answer = {"id": "a1", "by": "Ada", "text": "", "question": question["id"], "answers": given}
        inbox.put(str(stage.own), 1, answer)
        assert await until_answered(stage) == {"delivered": True, "reason": ""}
        assert await driver.wait() == 0
        stage.order("end 0")
    (answered,) = [each for each in stage.received if "outcome" in json.dumps(each)]
    assert answered["result"]["outcome"] == {"outcome": "selected", "optionId": option}
    ended = read(stage.own)
    assert [line["question"].get("by") for line in ended.of("question_answered")] == ["Ada"]
    assert len(ended.of("question_asked")) == 1
    assert [line["by"] for line in ended.of("permission_rejected")] == ([] if answers else ["Ada"])
    assert ended.end["reason"] is None


async def test_sigterm_cancels_the_turn(name: str, tmp_path: Path) -> None:
    stage = recorded(tmp_path, name, "cancel")
    async with stage.running():
        driver = await stage.driver()
        await stage.until(b'"tool_running"')
        driver.send_signal(signal.SIGTERM)
        assert await driver.wait() == 0
        stage.order("end 143")
    ended = json.loads((stage.own / "end").read_text())
    lines = [json.loads(line)["type"] for line in stage.events.splitlines()]
    assert (ended["code"], ended["reason"]) == (143, "aborted")
    assert [each.get("method") for each in stage.received][-1] == "session/cancel"
    assert next(kind for kind in lines if kind in ("tool_use", "step_finish")) == "tool_use"


@pytest.mark.parametrize("method", ["initialize", "session/new"])
async def test_an_agent_that_does_not_answer_has_not_started(method: str, tmp_path: Path) -> None:
    stage = recorded(tmp_path, "claude", "text", {"hang": method}, start_timeout=0.5)
    ended = await stage.play()
    assert (ended.end["code"], ended.end["reason"], code(ended)) == (1, "agent_not_started", "agent_not_started")
    assert method in ended.end["detail"]
    assert prompts(stage) == 0


@pytest.mark.parametrize(("lines", "reason"), [(1, "agent_not_started"), (5, "agent_lost")])
async def test_the_end_of_an_agent_has_a_name(lines: int, reason: str, tmp_path: Path) -> None:
    stage = recorded(tmp_path, "claude", "tool-bash", {"lines": lines, "end": 3})
    ended = await stage.play()
    assert (ended.end["code"], ended.end["reason"], ended.code) == (1, reason, 3)
    assert code(ended) == reason
    assert "exit code 3" in ended.end["detail"]


async def test_an_agent_that_is_missing_has_not_started(tmp_path: Path) -> None:
    ended = await Stage(tmp_path, PROFILES["claude"], ["no-such-agent"]).play()
    assert (ended.end["reason"], ended.code) == ("agent_not_started", 127)


async def test_an_agent_that_is_killed_in_its_turn_is_lost(tmp_path: Path) -> None:
    stage = recorded(tmp_path, "claude", "cancel")
    async with stage.running() as agent:
        driver = await stage.driver()
        await stage.until(b'"tool_running"')
        program = int((stage.out / "program.pid").read_text())
        os.kill(program, signal.SIGKILL)
        assert await driver.wait() == 0
        stage.order("end 1")
        assert await agent.wait() == 137
    end = json.loads((stage.own / "end").read_text())
    assert (end["code"], end["reason"]) == (1, "agent_lost")
    assert code(report(stage.events, {**end, "code": 137}, None)) == "agent_lost"


async def test_a_container_that_is_killed_whole_is_noticed(tmp_path: Path) -> None:
    stage = recorded(tmp_path, "claude", "cancel")
    async with stage.running():
        driver = await stage.driver()
        await stage.until(b'"tool_running"')
    async with asyncio.timeout(60):
        assert await driver.wait() == 0
    assert json.loads((stage.own / "end").read_text())["reason"] == "agent_lost"


@pytest.mark.slow  # the cut at any place below is quick
async def test_a_driver_that_is_killed_again_and_again_loses_and_doubles_nothing(name: str, tmp_path: Path) -> None:
    whole = await recorded(tmp_path / "whole", name, "tool-bash").play()
    choose, kills = random.Random(name), 0
    stage = recorded(tmp_path / "killed", name, "tool-bash", profile={"usage_files": None})
    async with stage.running():
        while not (stage.own / "end").exists():
            driver = await stage.driver()
            longest = 0.3 + kills / 20  # so that a slow machine comes to the end
            limit = None if prompt_may_be_cut(stage) else choose.uniform(0.05, longest)  # its proof takes 10 s
            try:
                async with asyncio.timeout(limit):
                    await driver.wait()
            except TimeoutError:
                driver.kill()
                kills += 1
                await driver.wait()
        stage.order("end 0")
    if json.loads((stage.own / "end").read_text())["reason"] == "agent_lost":
        assert (prompt_may_be_cut(stage), prompts(stage)) == (True, 0)  # killed between the note and the prompt
        return
    killed = [json.loads(line) for line in stage.events.splitlines()]
    assert [without_times(line) for line in killed] == [without_times(line) for line in whole.events]
    assert prompts(stage) == 1


def prompt_may_be_cut(stage: Stage) -> bool:
    state = State.read(str(stage.own))
    return "prompt" in state.asked and "prompt" not in state.written


@pytest.mark.parametrize("at", range(0, 14, 2))
async def test_lines_are_whole_after_a_cut_at_any_place(at: int, tmp_path: Path) -> None:
    stage = recorded(tmp_path, "claude", "tool-bash")
    async with stage.running():
        assert await (await stage.driver()).wait() == 0
        whole = stage.events
        lines = whole.splitlines(keepends=True)
        (stage.own / "end").unlink()
        (stage.own / "events").write_bytes(b"".join(lines[:at]) + lines[at][:20])
        assert await (await stage.driver()).wait() == 0
        stage.order("end 0")
    again = [without_times(json.loads(line)) for line in stage.events.splitlines()]
    assert again == [without_times(json.loads(line)) for line in lines]
    assert prompts(stage) == 1


async def test_a_prompt_that_may_have_been_cut_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = recorded(tmp_path, "claude", "tool-bash", {"hang": "session/prompt"})
    monkeypatch.setattr("tests.pod.acp.START", f"import sys; sys.path.insert(0, sys.argv[1]); {SHORT_PROOF}")
    async with stage.running():
        driver = await stage.driver()
        while prompts(stage) == 0:  # noqa: ASYNC110 - a file of another process has no event
            await asyncio.sleep(0.02)
        driver.kill()
        await driver.wait()
        state = json.loads((stage.own / "state").read_text())
        (stage.own / "state").write_text(json.dumps({**state, "written": state["written"][:2]}))
        assert await (await stage.driver()).wait() == 0
        stage.order("end 1")
    end = json.loads((stage.own / "end").read_text())
    assert (end["reason"], end["detail"].partition(",")[0]) == (
        "agent_lost",
        "nobody knows whether the whole prompt reached it",
    )
    assert prompts(stage) == 1


async def test_what_comes_after_the_answer_does_not_change_the_lines_that_are_written(tmp_path: Path) -> None:
    stage = recorded(tmp_path, "claude", "tool-bash")
    async with stage.running():
        assert await (await stage.driver()).wait() == 0
        whole = stage.events
        (stage.own / "end").unlink()
        with (stage.out / "protocol").open("ab") as late:
            late.write(UPDATE % b'{"sessionUpdate":"available_commands_update","availableCommands":[]}')
        assert await (await stage.driver()).wait() == 0
        stage.order("end 0")
    assert stage.events == whole


SHORT_PROOF = (
    "from agent_runs.pod.sidecar.drivers.acp import drive; drive.PROOF_SECONDS = 0.3; drive.drive(sys.argv[2])"
)


def without_times(value: Any) -> Any:
    """A line without what differs each time."""
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key not in ("timestamp", "time")}
    return value


DEEP = b'{"jsonrpc":"2.0","method":"session/update","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
UPDATE = b'{"method":"session/update","params":{"sessionId":"54532c11-79a7-43c1-ba9c-97b194ef0589","update":%s}}\n'
HOSTILE = {
    "garbage": b"\x00\xff\xfe garbage\n{]\n\n\n[1,2]\nnull\n" * 100,
    "invalid utf-8": UPDATE % b'{"sessionUpdate":"agent_message_chunk","content":{"text":"a\xff\xed\xa0\x80b"}}',
    "lone surrogate": UPDATE % b'{"sessionUpdate":"agent_message_chunk","content":{"text":"a\\ud800b"}}',
    "huge line": b'{"method":"' + b"x" * 9_000_000 + b'"}\n',
    "many values": b'{"params":[' + b"[]," * 1_000_000 + b"0]}\n",
    "deep": DEEP,
    "huge number": b'{"id":' + b"9" * 5000 + b"}\n",
    "wrong shapes": b"".join(
        UPDATE % shape
        for shape in (
            *(b"7", b"null", b"{}", b'{"sessionUpdate":7}', b'{"sessionUpdate":"agent_message_chunk","content":[]}'),
            *(b'{"sessionUpdate":"tool_call"}', b'{"sessionUpdate":"tool_call","toolCallId":{},"rawInput":[1]}'),
            b'{"sessionUpdate":"tool_call","toolCallId":"x","title":5,"content":[3,{"content":7}],"_meta":[],"name":{}}',
            b'{"sessionUpdate":"tool_call_update","toolCallId":"x","status":"completed","rawOutput":{"exit_code":1e999}}',
            b'{"sessionUpdate":"usage_update","cost":{"amount":"1","currency":"USD"}}',
        )
    )
    + b'{"id":0,"method":"session/request_permission","params":{"options":{"a":1}}}\n{"id":[],"method":7}\n'
    b'{"id":"' + b"y" * 5000 + b'","method":"session/request_permission","params":7}\n',
}


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_whatever_the_agent_writes_the_turn_goes_on_in_little_memory(hostile: str, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(HOSTILE[hostile] + b'{"jsonrpc":"2.0","id":NUMBER,"result":{"stopReason":"end_turn"}}\n')
    stage = recorded(tmp_path / "stage", "claude", "tool-bash", {"raw": str(raw)})
    async with stage.running():
        driver = await stage.driver()
        peaks = set()
        while (peak := peak_memory(driver.pid)) is not None:
            peaks.add(peak)
            await asyncio.sleep(0.005)
        assert await driver.wait() == 0
        stage.order("end 0")
    assert json.loads((stage.own / "end").read_text())["code"] == 0
    assert max(peaks) < 64 * 1024
    assert max(map(len, stage.events.splitlines())) < 1024 * 1024
    for line in stage.events.splitlines():
        line.decode()
        json.loads(line)


def peak_memory(pid: int) -> int | None:
    """KiB that a process had at most; None once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) if found else None


async def test_a_prompt_larger_than_the_fifo_arrives_whole(tmp_path: Path) -> None:
    text = "word " * 100_000
    stage = recorded(tmp_path, "claude", "tool-bash", text=text)
    ended = await stage.play()
    assert ended.end["code"] == 0
    (prompt,) = [each for each in stage.received if each.get("method") == "session/prompt"]
    assert prompt["params"]["prompt"] == [{"type": "text", "text": text}]


async def test_an_agent_that_refuses_a_session_breaks_the_protocol(tmp_path: Path) -> None:
    ended = await recorded(tmp_path, "qwen", "no-auth", profile={"errors": []}).play()
    assert (ended.end["code"], ended.end["reason"], code(ended)) == (1, "agent_protocol", "agent_protocol")
    assert "-32000" in ended.end["detail"]
    assert ended.report.failure is not None
    assert ended.report.failure.message == ended.end["detail"]


async def test_an_agent_that_does_not_understand_the_prompt_breaks_the_protocol(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(b'{"jsonrpc":"2.0","id":NUMBER,"error":{"code":-32602,"message":"Invalid params"}}\n')
    ended = await recorded(tmp_path / "stage", "claude", "tool-bash", {"raw": str(raw)}).play()
    assert (ended.end["reason"], code(ended)) == ("agent_protocol", "agent_protocol")


async def test_an_output_that_is_emptied_ends_the_turn(tmp_path: Path) -> None:
    stage = recorded(tmp_path, "claude", "cancel")
    async with stage.running():
        driver = await stage.driver()
        await stage.until(b'"tool_running"')
        (stage.out / "protocol").write_bytes(b"")
        assert await driver.wait() == 0
    assert json.loads((stage.own / "end").read_text())["reason"] == "agent_protocol"


async def test_text_is_shown_as_it_grows(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    os.mkfifo(raw)
    stage = recorded(tmp_path / "stage", "claude", "tool-bash", {"raw": str(raw)})
    async with stage.running():
        driver = await stage.driver()
        chunk = UPDATE % b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"word "}}'
        await asyncio.to_thread(raw.write_bytes, chunk * 3)
        await stage.until(b'"text_growth"')
        driver.kill()
        await driver.wait()
        stage.order("end 1")
    (grown,) = [line for line in map(json.loads, stage.events.splitlines()) if line["type"] == "text_growth"]
    assert (grown["kind"], grown["length"]) == ("text", len("word word word "))


def chunk(text: str, session: str) -> str:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    params = {"sessionId": session, "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params})


async def test_text_that_comes_after_the_answer_to_the_prompt_is_part_of_the_turn(tmp_path: Path) -> None:
    stage, raw = recorded(tmp_path / "stage", "claude", "text"), tmp_path / "raw"
    session = next(
        message["result"]["sessionId"]
        for message in map(message_of, (CAPTURES / "claude" / "text.jsonl").read_text().splitlines())
        if "sessionId" in message.get("result", {})
    )
    answer = '{"jsonrpc":"2.0","id":NUMBER,"result":{"stopReason":"end_turn"}}'
    lines = [chunk("The result is ready: ", session), answer, chunk("42 files changed.", session)]
    raw.write_text("\n".join(lines) + "\n")
    stage.command = [*stage.command[:-1], json.dumps({"raw": str(raw)})]
    async with stage.running() as agent:
        assert await (await stage.driver()).wait() == 0
        ended = read(stage.own)
        assert (ended.end["code"], ended.text) == (0, "The result is ready: 42 files changed.")
        assert ended.report.summary == "The result is ready: 42 files changed."
        (stage.own / "end").unlink()
        with (stage.out / "protocol").open("a") as protocol:
            protocol.write(chunk("Much later.", session) + "\n")
        again = await stage.driver()  # it takes the place of one that was killed at the very end
        assert await again.wait() == 0
        stage.order("end 0")
        assert await agent.wait() == 0
    repeated = read(stage.own)
    assert (repeated.text, repeated.kinds) == (ended.text, ended.kinds)
    assert [line["acp"]["count"] for line in repeated.of("acp_update") if "end of the turn" in json.dumps(line)] == [1]


def message_of(line: str) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(line)["message"]
    return message


def edited(folder: Path, name: str, text: str, script: dict[str, Any] | None = None) -> Stage:
    """A stage with a recording that was changed."""
    stage, capture = recorded(folder, name, "text", script), folder / "capture.jsonl"
    capture.write_text(text)
    stage.command = [*stage.command[:4], str(capture), *stage.command[5:]]
    return stage


def jsonl(lines: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


@pytest.mark.parametrize("version", [2, "1", None, 0])
async def test_an_agent_of_another_protocol_version_gets_no_prompt(version: object, tmp_path: Path) -> None:
    lines = (CAPTURES / "claude" / "text.jsonl").read_text()
    changed = lines.replace('"protocolVersion": 1', f'"protocolVersion": {json.dumps(version)}')
    stage = edited(tmp_path, "claude", changed)
    ended = await stage.play()
    assert (ended.end["code"], ended.end["reason"], code(ended)) == (1, "agent_protocol", "agent_protocol")
    assert f"protocol version {version}" in ended.end["detail"]
    assert prompts(stage) == 0


def steered(folder: Path, **answer: Any) -> Stage:
    """A stage whose agent gets a message while its tool works, and answers it once there is a file `go`."""
    lines = [json.loads(line) for line in (CAPTURES / "codex" / "cancel.jsonl").read_text().splitlines()]
    at = next(number for number, line in enumerate(lines) if line["message"].get("method") == "session/cancel")
    asked = {"to": "agent", "message": {"id": "steered", "method": STEERING}}
    result = answer or {"result": {"outcome": "injected"}}
    answered = {"to": "client", "message": {"jsonrpc": "2.0", "id": "steered", **result}}
    return edited(folder, "codex", jsonl([*lines[:at], asked, answered, *lines[at:]]), {"hold": STEERING})


async def until_answered(stage: Stage) -> dict[str, Any]:
    """What came of the first message."""
    async with asyncio.timeout(60):
        while not (answer := inbox.answer_to(str(stage.own), 1)):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    return answer


async def test_a_message_is_sent_once_although_the_driver_is_killed_before_its_answer(tmp_path: Path) -> None:
    stage = steered(tmp_path)
    async with stage.running():
        driver = await stage.driver()
        await stage.until(b'"tool_running"')
        inbox.put(str(stage.own), 1, MESSAGE)
        async with asyncio.timeout(60):
            while STEERING not in methods(stage):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)
        driver.kill()
        await driver.wait()
        (stage.work / "go").touch()
        driver = await stage.driver()
        assert await until_answered(stage) == {"delivered": True, "reason": ""}
        driver.send_signal(signal.SIGTERM)
        assert await driver.wait() == 0
        stage.order("end 143")
    assert methods(stage).count(STEERING) == 1
    assert [json.loads(line)["type"] for line in stage.events.splitlines()].count("user_message") == 1


@pytest.mark.parametrize(
    "refusal", [{"error": {"code": -32602, "message": "no heron"}}, {"result": {"outcome": "no heron"}}], ids=list
)
async def test_what_an_agent_says_to_a_message_that_it_refuses_is_in_the_transcript_alone(
    refusal: dict[str, Any], tmp_path: Path
) -> None:
    stage = steered(tmp_path, **refusal)
    async with stage.running():
        driver = await stage.driver()
        await stage.until(b'"tool_running"')
        (stage.work / "go").touch()
        inbox.put(str(stage.own), 1, MESSAGE)
        answer = await until_answered(stage)
        driver.kill()
        await driver.wait()
    assert answer == {"delivered": False, "reason": "Codex has refused it: the transcript has its answer"}
    assert stage.events.count(b"no heron") == 1


async def test_more_than_100_questions_of_a_turn_are_rejected_by_name_before_they_are_asked(tmp_path: Path) -> None:
    option = {"kind": "allow_once", "optionId": "yes", "name": "Allow"}
    params = {"sessionId": "s", "toolCall": {"toolCallId": "t", "title": "rm"}, "options": [option]}
    asking = [
        {"jsonrpc": "2.0", "id": number, "method": "session/request_permission", "params": params}
        for number in range(1000, 1103)
    ]
    (tmp_path / "raw").write_text(jsonl(asking))
    script = {"raw": str(tmp_path / "raw")}
    stage = recorded(tmp_path / "stage", "claude", "text", script, profile={"permissions": "ask"})
    async with stage.running():
        for _ in range(2):
            driver = await stage.driver()
            async with asyncio.timeout(60):
                while stage.events.count(b'"permission_rejected"') < 3:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.02)
            driver.kill()
            await driver.wait()
    written = [json.loads(line) for line in stage.events.splitlines()]
    assert [line["type"] for line in written].count("question_asked") == 100
    rejected = [(line["requestID"], line["by"]) for line in written if line["type"] == "permission_rejected"]
    assert rejected == [(str(number), "the limit of 100 questions of one run") for number in range(1100, 1103)]


async def test_a_message_that_may_have_been_cut_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = steered(tmp_path)
    monkeypatch.setattr("tests.pod.acp.START", f"import sys; sys.path.insert(0, sys.argv[1]); {SHORT_PROOF}")
    async with stage.running():
        driver = await stage.driver()
        await stage.until(b'"tool_running"')
        driver.kill()
        await driver.wait()
        state = json.loads((stage.own / "state").read_text())
        asked = [*state["asked"], str(drive.STEERING + 1)]
        (stage.own / "state").write_text(json.dumps({**state, "asked": asked}))
        inbox.put(str(stage.own), 1, MESSAGE)
        driver = await stage.driver()
        answer = await until_answered(stage)
        driver.kill()
        await driver.wait()
    assert answer == {"delivered": False, "reason": "nobody knows whether it has reached the agent"}
    assert STEERING not in methods(stage)


async def test_an_agent_that_takes_no_title_works_without_one(tmp_path: Path) -> None:
    """Codex before 2.5 has no such method."""
    lines = [json.loads(line) for line in (CAPTURES / "codex" / "text.jsonl").read_text().splitlines()]
    (asked,) = [each["message"]["id"] for each in lines if each["message"].get("method") == "session/set_title"]
    (answer,) = [each["message"] for each in lines if each["to"] == "client" and each["message"].get("id") == asked]
    del answer["result"]
    answer["error"] = {"code": -32601, "message": "Method not found"}
    stage = edited(tmp_path, "codex", jsonl(lines))
    ended = await stage.play()
    assert (code(ended), prompts(stage)) == (None, 1)


@pytest.mark.parametrize(
    ("version", "refused"), [("1.0.0", True), ("0.89.9", True), ("0.250.0", False), ("dev", False)]
)
async def test_an_agent_of_a_version_that_is_not_supported_gets_no_prompt(
    version: str, refused: bool, tmp_path: Path
) -> None:
    lines = (CAPTURES / "claude" / "text.jsonl").read_text()
    changed = lines.replace('"version": "0.101.0"', f'"version": "{version}"')
    assert changed != lines
    stage = edited(tmp_path, "claude", changed)
    ended = await stage.play()
    assert ended.of("agent_version") == [{**ended.of("agent_version")[0], "version": version}]
    assert (code(ended), prompts(stage)) == (("agent_version_unsupported", 0) if refused else (None, 1))
    if refused:
        wanted = f"Claude Code {version} is not supported: supported are 0.90.0 to 0.101.0, and later ones"
        assert wanted in ended.end["detail"]
