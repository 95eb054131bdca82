"""What may take long is done in a thread or in pieces, so that one run's input never holds up another run.

How long the event loop is blocked is measured in `bench/loop.py`.
"""

import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.testing import ActivityEnvironment

from activities.check_configuration import CheckConfigurationActivity
from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.errors import SealedFieldUnreadable
from agent_runs.contracts.large_json import MAX_VALUES
from agent_runs.contracts.outcome import Outcome, OutputReceipt
from agent_runs.contracts.start import Binding, CheckReport, CheckStart, SealedCheck, SealedRun
from agent_runs.job.checks import Checks
from agent_runs.job.redactions import WorkerValues
from agent_runs.paperclip.sealing import Opener, Sealer, SealingKey
from agent_runs.paperclip.secret_values import MAX_VALUES as MAX_SECRETS
from agent_runs.transcript.fold import Fold
from agent_runs.web import render, transcripts
from agent_runs.web.transcripts import CHUNK_BYTES, PIECE_BYTES, as_json
from tests.runs.system import System
from tests.web.parts import RUN, Site, key, line, run_info, site, text_event

KEY = SealingKey.generate()
LONG = b"word " * (CHUNK_BYTES // 2)
RECEIPT = OutputReceipt(state="verified", lines=1)


class Threads:
    """Notes whether a function was called in the thread of the event loop."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.calls: dict[str, set[bool]] = {}

    def note(self, owner: object, name: str, *, of: Callable[..., bool] = lambda *_: True) -> None:
        """Note the calls of a function that this condition holds for."""
        function, seen = getattr(owner, name), self.calls.setdefault(name, set())

        def noted(*args: Any, **kwargs: Any) -> Any:
            if of(*args):
                seen.add(threading.current_thread() is threading.main_thread())
            return function(*args, **kwargs)

        self._patch.setattr(owner, name, noted)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


async def test_what_is_sealed_for_a_run_and_for_a_join_is_opened_in_a_thread(system: System, threads: Threads) -> None:
    threads.note(Opener, "open")
    threads.note(Opener, "tokens")
    raw = system.agent("cat > /dev/null; until [ -e $GO ]; do sleep 0.05; done; echo done")
    raw["authToken"] = "token-of-the-first-run"
    go = system.programs / "go"
    raw["config"]["env"]["GO"] = str(go)
    async with system.worker():
        ticket = await system.start(raw)
        joined = await system.start({**raw, "runId": str(uuid.uuid4()), "authToken": "token-of-the-later-run"})
        assert joined.kind == "joined"
        go.touch()
        await outcome_at_close(ticket.handle(system.temporal))
    assert threads.calls == {"open": {False}, "tokens": {False}}


def check_start(config: dict[str, Any], workflow_id: str) -> CheckStart:
    binding = Binding(purpose="check", workflow_id=workflow_id, company_id="acme", run_id="check-1")
    sealed = Sealer(KEY.public).seal(SealedCheck(binding=binding, config=config))
    return CheckStart(check_id="check-1", company_id="acme", sealed=sealed)


async def checked(config: dict[str, Any], values: WorkerValues | None = None) -> CheckReport:
    async def worker_values() -> WorkerValues:
        return values or WorkerValues()

    environment = ActivityEnvironment()
    step = CheckConfigurationActivity(Opener([KEY]), Checks(), None, worker_values).check_configuration
    report: CheckReport = await environment.run(step, check_start(config, environment.info.workflow_id or ""))
    return report


async def test_an_environment_test_opens_its_configuration_in_a_thread(threads: Threads) -> None:
    threads.note(Opener, "open")
    await checked({"model": "fake/model"})
    assert threads.calls == {"open": {False}}


@pytest.mark.parametrize(("more", "refused"), [(0, False), (1, True)])
async def test_an_environment_test_refuses_as_many_secrets_as_a_run_does(more: int, refused: bool) -> None:
    headers = {f"X-Header-{number}": f"header-value-{number:06}" for number in range(MAX_SECRETS - 3 + more)}
    servers = {"many": {"type": "remote", "url": "https://mcp.invalid", "headers": headers}}
    provider = {"provider": {"acme": {"options": {"apiKey": "provider-key"}}}}
    own = WorkerValues({"ANTHROPIC_API_KEY": "inherited-key"}, provider)
    report = await checked({"model": "fake/model", "workspace": "ephemeral", "mcpServers": servers}, own)
    errors = [finding.message for finding in report.findings if finding.level == "error"]
    assert any(f"{MAX_SECRETS + 1} secret values" in message for message in errors) == refused
    assert bool(errors) == refused


def test_a_sealed_text_of_millions_of_values_is_refused_by_name() -> None:
    binding = Binding(purpose="run", workflow_id="w", company_id="acme", run_id="run-1")
    sealed = Sealer(KEY.public).seal(SealedRun(binding=binding, context={"more": [[]] * (MAX_VALUES + 1)}))
    with pytest.raises(SealedFieldUnreadable, match=f"more than {MAX_VALUES} values"):
        Opener([KEY]).open(sealed, SealedRun, binding)


async def test_a_long_line_is_folded_in_a_thread(system: System, threads: Threads) -> None:
    threads.note(Fold, "add", of=lambda _, one: len(one.data) > CHUNK_BYTES)
    raw = system.agent("cat > /dev/null; head -c 1000000 /dev/zero | tr '\\0' x; echo")
    async with system.worker():
        await system.outcome(raw)
    assert threads.calls == {"add": {False}}


@pytest.mark.parametrize("path", ["", "/live", "/events", "/transcript", "/log?format=events"])
async def test_a_long_line_is_encoded_and_rendered_in_a_thread(
    path: str, threads: Threads, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with site(tmp_path_factory.mktemp("site")) as running:
        await store_long_line(running)
        threads.note(json, "dumps", of=lambda value, *_: isinstance(value, str) and len(value) > 1000)
        threads.note(render, "entry")
        threads.note(transcripts, "_json_pieces", of=lambda one: len(one.data) > PIECE_BYTES)
        await running.get(f"/runs/{RUN}{path}")
    assert set().union(*threads.calls.values()) <= {False}
    assert any(threads.calls.values()) or path == "/log?format=events"


async def store_long_line(running: Site) -> None:
    await running.store.append(key(), [line(1, text_event(LONG.decode()))])
    await running.store.seal(key(), RECEIPT)
    running.source.info = run_info("ended", Outcome())


@given(
    data=st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")),
    times=st.integers(0, 3),
)
@settings(max_examples=50)
def test_a_long_line_in_pieces_is_what_it_is_at_once(data: bytes, times: int) -> None:
    one = line(7, data * (times * PIECE_BYTES // max(len(data), 1) + 1), "stderr")
    made = list(transcripts._json_pieces(one))
    assert "".join(made) == as_json(one)
    assert max(map(len, made)) <= 12 * PIECE_BYTES


def test_what_is_written_to_a_reader_at_a_time_is_bounded() -> None:
    pieces = list(transcripts._encoded([line(1, b"\x01" * 4 * CHUNK_BYTES), line(2, b"x")], "id: {}\ndata: ", "\n\n"))
    assert max(map(len, pieces)) <= CHUNK_BYTES + 12 * PIECE_BYTES
    events = b"".join(pieces).decode().split("\n\n")
    assert [json.loads(event.partition("data: ")[2])["sequence"] for event in events[:2]] == [1, 2]
