"""The real agents under the real runner and sidecar, with the scripted model as their provider."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_runs.agents.profile import load
from agent_runs.contracts.outcome import ContainerEnd, Report
from dev_stack.agent_programs import ProgramUnavailable, ensure_program
from dev_stack.scripted_model import ScriptedModel
from tests.agents.launch import KEY, launch
from tests.conftest import UNKNOWN_SESSION
from tests.pod.acp import HIDDEN, PROFILES, SCRIPT, TITLES, acp_turn
from tests.pod.harness import Ended, Runner, Running, alive, children
from tests.support.saved_output import fold_chunks

pytestmark = [pytest.mark.slow, pytest.mark.real_agents, pytest.mark.timeout(900)]


class Agent:
    """A real agent with a home that stays; each turn has a pod's folders of its own."""

    def __init__(self, name: str, installed: Path, folder: Path, model: ScriptedModel) -> None:
        self.name, self.installed, self.folder, self.model = name, installed, folder, model
        self.home = folder / "home"
        self.home.mkdir()
        self.turns = 0
        self.runners: list[Runner] = []

    def start(self, scenario: str, text: str = "go", *, prefix: str = "scenario/", **turn: Any) -> Running:
        """Begin a turn with the model of this scenario."""
        self.turns += 1
        pod, work = self.folder / f"pod-{self.turns}", self.folder / "work"
        pod.mkdir()
        model = f"{prefix}{scenario}"
        started = launch(self.name, self.installed, self.home, model, self.model.origin)
        runner = Runner(
            ["sh"], pod, grace=5, options=["--serve", str(SCRIPT), "--dir", str(work)], env=started.environment
        )
        if self.name == "gemini":
            runner.env["AGENT_RUN_PREPARE"] = "gemini_sessions"
        about = {"text": text, "model": model, "title": TITLES[self.name]}
        known = acp_turn(work, PROFILES[self.name], start_timeout=60, **about)
        runner.sidecar.turn = pod / "turn.json"
        runner.sidecar.turn.write_text(json.dumps(known | turn))
        self.runners.append(runner)
        return runner.start(*started.command)

    async def play(self, scenario: str, text: str = "go", **turn: Any) -> tuple[Ended, Report]:
        """A whole turn."""
        return await ended(self.start(scenario, text, **turn), turn.get("session"))


async def ended(run: Running, session: str | None = None) -> tuple[Ended, Report]:
    """The end of a run, and what the worker makes of it."""
    end = await asyncio.to_thread(run.read_to_end)
    return end, judged(end, session)


def judged(end: Ended, session: str | None = None) -> Report:
    container = ContainerEnd(exit_code=end.last.exit_code, runner_error=end.last.error)
    return fold_chunks([end.raw("stdout")], [end.raw("stderr")], session).report(container, verified=True)


def kinds(end: Ended) -> list[str]:
    types = [json.loads(line)["type"] for line in end.text("stdout")]
    return [kind for kind in types if kind not in HIDDEN]


def code(report: Report) -> str | None:
    return report.failure.code if report.failure else None


def until(run: Running, part: bytes) -> None:
    """Read until a line has this."""
    while part not in run.await_line("stdout"):
        pass


def driver_of(run: Running) -> int:
    (driver,) = children(run.sidecar.pid)
    return driver


def of_home(home: Path) -> list[int]:
    """Processes that live with this home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"\0HOME={home}\0".encode() in b"\0" + path.read_bytes() and alive(int(path.parent.name)):
                found.append(int(path.parent.name))
        except (OSError, ValueError):
            continue
    return found


@pytest.fixture
async def agent(name: str, tmp_path: Path, model: ScriptedModel) -> AsyncIterator[Agent]:
    try:
        installed = await ensure_program(name)
    except ProgramUnavailable as error:
        pytest.skip(f"{name}: {error}")
    agent = Agent(name, installed, tmp_path, model)
    yield agent
    for runner in agent.runners:
        await asyncio.to_thread(runner.clean_up)
    left = of_home(agent.home)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


async def test_a_turn_with_a_tool_ends_well_and_reports_what_it_used(agent: Agent) -> None:
    end, report = await agent.play("tool-bash", "greet")
    assert code(report) is None
    assert (end.code, end.last.error) == (0, None)
    assert kinds(end)[:4] == ["step_start", "tool_running", "tool_use", "step_finish"]
    assert kinds(end)[-1] == "step_finish"
    assert "The command printed its greeting." in report.summary
    assert report.usage.input_tokens + report.usage.cached_input_tokens == 200
    assert report.usage.output_tokens == 40
    assert (report.cost_usd is not None) == (agent.name in ("claude", "pi"))
    assert KEY.encode() not in end.log
    files = [path for path in agent.home.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


async def test_tokens_are_those_that_the_model_has_sent(agent: Agent) -> None:
    _, report = await agent.play("usage", "count")
    used = report.usage
    shares = (used.input_tokens, used.cached_input_tokens, used.output_tokens, used.reasoning_tokens)
    partial = {"claude": (600, 400, 50, 0), "gemini": (1000, 0, 40, 0)}
    assert shares == partial.get(agent.name, (600, 400, 50, 10))
    _, second = await agent.play("usage", "count again", session=report.session_id)
    assert code(second) is None
    assert second.usage == used


@pytest.mark.parametrize("name", ["codex"])
async def test_the_model_is_asked_for_no_title_and_no_suggestion(agent: Agent) -> None:
    """Nobody would count their tokens."""
    await agent.play("text", "the prompt")
    assert {each.model for each in agent.model.sent} == {"scenario/text"}
    assert ["the prompt" in json.dumps(each["input"][-1]) for each in agent.model.requests] == [True]


async def test_a_message_reaches_an_agent_in_its_turn_or_is_refused(agent: Agent) -> None:
    run = agent.start("slow-steps:1:6", "work")
    await asyncio.to_thread(until, run, b'"tool_running"')
    message = {"id": "m1", "by": "ada", "text": "the word is heron"}
    sidecar = agent.runners[-1].sidecar
    answer: dict[str, Any] = {"accepted": True}
    while answer == {"accepted": True}:  # as the worker asks
        answer = await asyncio.to_thread(sidecar.ask, "tell", message)
    end, report = await ended(run)
    assert code(report) is None
    received = [json.dumps(each) for each in agent.model.requests if "the word is heron" in json.dumps(each)]
    if load()[agent.name].takes_messages:
        assert (answer["delivered"], kinds(end).count("user_message"), len(received) > 0) == (True, 1, True)
        assert max(each.count("the word is heron") for each in received) == 1
    else:
        reason = f"{load()[agent.name].title} takes no message while it works"
        assert (answer["accepted"], answer["reason"], len(received)) == (False, reason, 0)


async def test_a_session_goes_on_three_times_and_after_a_kill(agent: Agent) -> None:
    _, report = await agent.play("echo", "the first prompt")
    session = report.session_id
    run = agent.start("slow-steps:1:600", "the second prompt", session=session)
    await asyncio.to_thread(until, run, b'"tool_running"')
    for pid in of_home(agent.home):
        if pid != run.process.pid:
            os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(run.read_to_end)
    for prompt in ("the third prompt", "the fourth prompt"):
        end, report = await agent.play("echo", prompt, session=session)
        assert (code(report), report.session_id) == (None, session)
        assert kinds(end) == ["step_start", "text", "step_finish"]
    received = json.dumps(agent.model.requests[-1])
    for prompt in ("the first prompt", "the third prompt", "the fourth prompt"):
        assert prompt in received


async def test_an_unknown_session_is_reported_without_a_request(agent: Agent) -> None:
    end, report = await agent.play("text", session=UNKNOWN_SESSION)
    assert (code(report), report.unknown_session, report.clear_session) == ("session_unavailable", True, True)
    assert end.code == 1
    assert "go" not in [each["content"] for request in agent.model.requests for each in request.get("messages", [])]


async def test_a_cancel_in_a_tool_ends_it(agent: Agent) -> None:
    run = agent.start("slow-steps:1:600", "work")
    await asyncio.to_thread(until, run, b'"tool_running"')
    run.stop()
    end, _ = await ended(run)
    assert (end.last.exit_code, end.last.stopped_by, end.last.error) == (143, "TERM", None)
    assert "tool_use" in kinds(end)
    assert of_home(agent.home) == []


async def test_a_provider_error_names_the_failure(agent: Agent) -> None:
    end, report = await agent.play("error:401", "fail")
    assert (code(report), end.code) == ("provider_credentials", 1)
    assert "401" in json.dumps(report.errors) or agent.name in ("claude", "codex")


async def test_an_agent_that_is_killed_in_its_turn_is_lost(agent: Agent) -> None:
    run = agent.start("slow-steps:1:600", "work")
    await asyncio.to_thread(until, run, b'"tool_running"')
    os.kill(int((run.out / "program.pid").read_text()), signal.SIGKILL)
    end, report = await ended(run)
    assert (code(report), end.last.error, end.code) == ("agent_lost", "agent_lost", 137)
    assert of_home(agent.home) == []


async def test_a_driver_that_is_killed_in_the_middle_loses_and_doubles_nothing(agent: Agent) -> None:
    run = agent.start("slow-steps:4:2", "work")
    for step in range(1, 5):
        await asyncio.to_thread(until, run, f"step-{step}".encode())
        os.kill(driver_of(run), signal.SIGKILL)
    end, report = await ended(run)
    assert code(report) is None
    counts = {kind: kinds(end).count(kind) for kind in ("tool_running", "tool_use", "text")}
    assert counts["tool_running"] == counts["tool_use"] == 4
    sent = [json.dumps(request) for request in agent.model.requests]
    assert max(len(re.findall(r'"work"', request)) for request in sent) == 1
    protocol = [json.loads(line) for line in (run.out / "protocol").read_text().splitlines()]
    assert len([each for each in protocol if "stopReason" in json.dumps(each.get("result"))]) == 1


async def test_mode_and_model_are_those_of_the_profile(agent: Agent) -> None:
    changes: dict[str, dict[str, Any]] = {
        "claude": {"mode": "acceptEdits"},
        "codex": {"mode": "agent"},
        "gemini": {"mode": "default"},
        "qwen": {"mode": "auto-edit"},
        "pi": {"model_option": "model"},
    }
    profile = PROFILES[agent.name] | changes[agent.name]
    run = agent.start("text", profile=profile, **({"model": "scripted/scenario/text"} if agent.name == "pi" else {}))
    _, report = await ended(run)
    assert code(report) is None
    answers = [json.loads(line) for line in (run.out / "protocol").read_text().splitlines()]
    assert [each for each in answers if each.get("id") in (4, 5) and "result" in each and "method" not in each]


@pytest.mark.parametrize(
    ("name", "suggested"), [(name, model) for name, profile in load().items() for model in profile.models]
)
async def test_a_suggested_model_is_what_the_provider_is_asked_for(agent: Agent, suggested: str) -> None:
    model = suggested.partition("/")[2]
    _, report = await agent.play(model, "hello", prefix="")
    assert report.failure is not None  # the scripted provider has no such model
    asked = [str(each["model"]) for each in agent.model.requests]
    assert any(model in each for each in asked) or (model == "auto" and len(asked) > 0), asked
