"""Lists of runs: the table fits every terminal, leads to the page of each run, and says what it could not read."""

import asyncio
import fcntl
import io
import itertools
import json
import os
import pty
import socket
import struct
import termios
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from agent_runs.cli import transcripts
from agent_runs.cli.display import JsonDisplay, ListedRun, RunRef, TextDisplay
from agent_runs.cli.program import Refused
from agent_runs.cli.run_list import parse_filters, rows_of, screen, summary
from agent_runs.cli.runs_table import COLUMNS, LEFT_OUT, LEFT_OUT_LAST, elapsed_text, runs_table
from agent_runs.client.amounts import cost_text, short_count
from agent_runs.client.names import Names
from agent_runs.client.run_list import FAILURE_CODES
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import WORKFLOW_TYPE, AttemptKey, RunKey
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.transcript.usage import RunUsage, StoredUsage
from tests.cli.test_transcripts import PROGRAM, run, service
from tests.cli.test_transcripts import environment as environment  # noqa: PLC0414 (the fixture)
from tests.support.cases import case
from tests.web.parts import run_info
from workflows import attributes

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
PAGE = "http://127.0.0.1:8090/runs/run-1?token=abc"
RUN = run_info().run
LONG = replace(
    RUN,
    key=RunKey(agent_id=str(uuid.UUID(int=2)), company_id="acme", run_id=str(uuid.UUID(int=1))),
    phase="terminated",
    failure_code=max(FAILURE_CODES, key=len),
    task_key="t" * 300,
    model="provider/" + "m" * 100,
    open=False,
    ended_at=RUN.started_at + timedelta(hours=30),
    kept_until=NOON,
)
USAGE = RunUsage(
    *("run-1", "ada", "acme", 1, 123_456, 900_000, 5_000, 12, Decimal("12.345678"), 0, "m", "I look around " * 30),
    *(NOON, NOON, NOON),
    sealed=True,
)


def listed(page: str | None = PAGE, usage: RunUsage | None = None) -> ListedRun:
    return ListedRun(RUN, RunRef(RUN.key.run_id, RUN.key.agent_id, RUN.workflow_id, "0001", "http://ui", page), usage)


def for_people(page: str | None, *, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=110, legacy_windows=False, _environ={})
    TextDisplay(console=console).runs([listed(page)])
    return str(console.file.getvalue())  # type: ignore[attr-defined]  # it is the StringIO from above


def table(runs: Sequence[ListedRun], width: int, *, last_output: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=width, legacy_windows=False, _environ={})
    console.print(runs_table(runs, width, NOON, last_output=last_output))
    return str(console.file.getvalue()).rstrip("\n").split("\n")  # type: ignore[attr-defined]  # the StringIO


def test_a_program_gets_the_pages_and_the_usage_of_every_run_in_the_list() -> None:
    stream = io.StringIO()
    JsonDisplay(stream).runs([listed(usage=USAGE), listed(None)])
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["runId"], first["page"], first["webUi"]) == ("run-1", PAGE, "http://ui")
    assert (first["usage"]["costUsd"], first["usage"]["inputTokens"]) == ("12.345678", 123_456)
    assert second["page"] is second["usage"] is None


def test_a_person_clicks_the_run_in_a_terminal_and_gets_the_command_for_its_page() -> None:
    assert f"{PAGE}\x1b\\run-1" in for_people(PAGE, terminal=True)
    text = for_people(PAGE, terminal=False)
    assert "a run's page: agent-runs show RUN" in text
    assert "token=" not in text
    assert "\x1b" not in text
    assert "agent-runs show" not in for_people(None, terminal=False)


def test_show_prints_the_links_to_paperclip() -> None:
    console = Console(file=io.StringIO(), width=110, legacy_windows=False, _environ={})
    links = {"paperclip": "http://paperclip/agents/a/runs/r", "paperclip_task": "http://paperclip/issues/i"}
    TextDisplay(console=console).run(RunRef("run-1", "ada", "agent-run:ada", "0001", **links), "running")
    text = str(console.file.getvalue())  # type: ignore[attr-defined]  # it is the StringIO from above
    assert "Paperclip  http://paperclip/agents/a/runs/r\ntask       http://paperclip/issues/i\n" in text


# the table


def test_no_row_is_wrapped_and_a_failure_and_its_cost_are_whole() -> None:
    for width, last_output in itertools.product((*range(60, 131, 7), 200, 300), (False, True)):
        with case(width, last_output):
            runs = [ListedRun(LONG, listed().ref, USAGE), listed(usage=USAGE), listed()]
            lines = table(runs, width, last_output=last_output)
            assert len(lines) == 1 + len(runs)
            assert all(cell_len(line) <= width for line in lines)
            assert str(LONG.failure_code) in lines[1]
            assert "$12.3457" in lines[1]
            assert LONG.key.run_id[:8] in lines[1]


def test_columns_are_left_out_in_the_stated_order_from_the_widest_table_to_the_narrowest() -> None:
    runs = [ListedRun(LONG, listed().ref, USAGE)]
    seen: list[str] = []
    for width in range(400, 50, -1):
        (header, row) = table(runs, width, last_output=True)
        missing = [name for name in COLUMNS if name not in header and name not in seen]
        seen += missing
        if set(seen) & set(LEFT_OUT_LAST):
            assert LONG.key.run_id[:8] + " " in row
    order = [*LEFT_OUT, *LEFT_OUT_LAST]
    assert seen == order[: len(seen)]
    assert len(seen) > len(LEFT_OUT)


def test_at_200_columns_the_run_is_whole_and_a_column_without_values_is_left_out() -> None:
    header, row = table([ListedRun(replace(LONG, kept_until=None), listed().ref, USAGE)], 200)
    assert LONG.key.run_id in row
    assert {"run", "phase", "failure", "took", "tokens", "cost", "model"} <= set(header.split())
    assert "kept until" not in header
    assert "failure" not in table([listed()], 200)[0]


def test_a_row_begins_with_the_names_of_agent_and_task_and_with_their_ids_where_there_are_none() -> None:
    named = replace(LONG, names=Names("Ada", "ACM-7 A long task"), kept_until=None)
    runs = [ListedRun(named, listed().ref, USAGE), listed()]
    for width in (80, 110, 200):
        with case(width):
            _, first, second = table(runs, width)
            assert first.startswith("Ada · ACM-7 A long")
            assert second.startswith("ada ")


def test_a_run_without_any_id_is_a_row() -> None:
    nobody = replace(RUN, key=RunKey(agent_id="", company_id="", run_id=""))
    for width in (20, 200):
        assert len(table([ListedRun(nobody, listed().ref)], width)) == 2


def test_a_program_gets_the_names_beside_the_ids() -> None:
    stream = io.StringIO()
    named = replace(RUN, names=Names("Ada", "ACM-7 A long task"))
    JsonDisplay(stream).runs([ListedRun(named, listed().ref), listed()])
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["agentName"], first["taskName"], first["agentId"]) == ("Ada", "ACM-7 A long task", "ada")
    assert second["agentName"] is second["taskName"] is None


def test_hostile_texts_move_no_cursor_and_start_no_line() -> None:
    bad = "\x1b[2J\x1b]8;;http://evil\x07x\n\r\u202e\u2028y"
    wild = replace(LONG, phase=bad, failure_code=bad, task_key=bad, model=bad, names=Names(bad, bad))
    lines = table([ListedRun(wild, listed().ref, replace(USAGE, last_output=bad))], 400, last_output=True)
    assert len(lines) == 2
    assert not set("\x1b\r\u202e\u2028\x07") & set(lines[1])


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (200, "3m20s"), (7500, "2h05m"), (273_600, "3d04h")]
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert elapsed_text(timedelta(seconds=seconds)) == text


def test_a_run_whose_servers_clock_is_ahead_has_taken_no_time_yet() -> None:
    assert RUN.elapsed(RUN.started_at - timedelta(seconds=5)) == timedelta()


def test_amounts_are_short() -> None:
    assert [short_count(n) for n in (0, 999, 1000, 12_345, 999_999, 4_560_000, 10**12)] == [
        *("0", "999", "1.00k", "12.3k", "999k", "4.56M", "1,000G"),
    ]
    assert [cost_text(Decimal("0.01")), cost_text(None, 1), cost_text(Decimal(100), 2), cost_text(None)] == [
        *("$0.0100", "unpriced", "$100.00+?", ""),
    ]


def test_top_draws_no_more_lines_than_the_terminal_has() -> None:
    keys = (RunKey(agent_id="a", company_id="c", run_id=f"r{n}") for n in range(200))
    rows = [ListedRun(replace(RUN, key=key), listed().ref, USAGE) for key in keys]
    assert summary(rows).startswith("200 runs at work, 205M tokens, $2,469.14, ")
    console = Console(file=io.StringIO(), width=60, height=24, legacy_windows=False, _environ={})
    console.print(screen(rows, "Temporal does not answer; this is what was known before", 60, 24))
    lines = str(console.file.getvalue()).rstrip("\n").split("\n")  # type: ignore[attr-defined]  # the StringIO
    assert len(lines) <= 24
    assert "and 180 more" in lines
    assert all(cell_len(line) <= 60 for line in lines)


def test_an_option_that_cannot_be_used_is_named() -> None:
    with pytest.raises(Refused, match=r"^--phase: there is no such phase; did you mean failed"):
        parse_filters({"phase": "faild"})


async def test_a_store_that_is_misspelt_or_silent_is_a_note_and_holds_up_no_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "STORE_TIMEOUT", timedelta(milliseconds=50))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://ada:secret@127.0.0.1:{silent.getsockname()[1]}/runs"
        for wrong, reason in ((url, "did not answer within 0.05 s"), ("mysql://x/y", "mysql is not supported")):
            settings = ClientSettings(sealing_key_file=tmp_path / "key.json", transcripts_url=wrong)
            ([row], note) = await rows_of(settings, [RUN])
            assert (row.usage, reason in note, "secret" in note) == (None, True, False)


# as people start it


async def start(client: Client, **values: str | datetime) -> str:
    """A run that nobody works on; its id."""
    run_id = str(uuid.uuid4())
    named: dict[SearchAttributeKey[Any], Any] = {
        attributes.AGENT_ID: run_id,
        attributes.PAPERCLIP_RUN_ID: run_id,
        attributes.RUN_PHASE: "running",
    }
    named |= {getattr(attributes, name): value for name, value in values.items()}
    pairs = [SearchAttributePair(attribute, value) for attribute, value in named.items()]
    await client.start_workflow(
        WORKFLOW_TYPE, id=f"agent-run:{run_id}", task_queue="nobody", search_attributes=TypedSearchAttributes(pairs)
    )
    return run_id


async def until_listed(client: Client, run_id: str) -> None:
    async with asyncio.timeout(60):
        while not (await client.count_workflows(f"PaperclipRunId = '{run_id}'")).count:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.05)


async def use(url: str, run_id: str) -> None:
    """The store has the usage of this run."""
    store = await TranscriptStore.open(url)
    key = AttemptKey(run=RunKey(agent_id=run_id, company_id="acme", run_id=run_id))
    await store.append(
        key, [Line(1, "stdout", b"x", at=NOON)], usage=StoredUsage(1000, 0, 234, 1, Decimal("0.5"), "m", "hi")
    )
    await store.close()


async def test_runs_that_have_ended_are_not_open_also_while_their_outcome_is_kept(
    temporal: Client, environment: dict[str, str]
) -> None:
    company = str(uuid.uuid4())
    ended = await start(temporal, COMPANY_ID=company, RUN_PHASE="succeeded", ENDED_AT=NOON)
    working = await start(temporal, COMPANY_ID=company)
    await until_listed(temporal, ended)
    await until_listed(temporal, working)
    _, out, _ = await run("list", "--open", "--company", company, "--json", **environment)
    assert [each["runId"] for each in map(json.loads, out.splitlines()) if each["type"] == "run"] == [working]


async def test_list_filters_and_shows_cost_from_the_store_and_from_the_service(
    temporal: Client, environment: dict[str, str], tmp_path: Path
) -> None:
    company = str(uuid.uuid4())
    mine = await start(temporal, COMPANY_ID=company, TASK_KEY="it's mine")
    other = await start(temporal, COMPANY_ID=company, TASK_KEY="other")
    await until_listed(temporal, mine)
    await until_listed(temporal, other)
    code, out, _ = await run("list", "--company", company, **environment)
    assert code == 0
    assert mine in out
    assert other in out
    assert "tokens and cost are missing" in out
    assert not (tmp_path / "transcripts.db").exists()  # reading has created nothing
    url = environment["AGENT_RUNS_TRANSCRIPTS_URL"]
    await use(url, mine)
    narrow = {**environment, "COLUMNS": "60"}
    code, out, _ = await run("list", "--company", company, "--task", "it's mine", **narrow)
    rows = [row for row in out.splitlines() if "for a worker" not in row]  # none polls here
    assert (code, len(rows)) == (0, 2)
    assert "$0.5000" in out
    assert other not in out
    async with service(environment) as base:
        remote = {
            **environment,
            "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL": base,
            "AGENT_RUNS_TRANSCRIPTS_URL": "sqlite:///x.db",
        }
        code, out, _ = await run("list", "--company", company, "--json", **remote)
        found = {one["runId"]: one["usage"] for one in map(json.loads, out.splitlines()) if one["type"] == "run"}
        assert found[mine]["costUsd"] == "0.5"
        assert found[other] is None
        code, out, _ = await run("top", "--company", company, **remote)
        assert code == 0
        assert "1.23k" in out
        assert "hi" in out
        wrong = {**remote, "AGENT_RUNS_TRANSCRIPTS_KEY_FILE": str(tmp_path / "other.json")}
        code, out, _ = await run("list", "--company", company, **wrong)
        assert (code, mine in out, "AGENT_RUNS_TRANSCRIPTS_KEY_FILE" in out) == (0, True, True)
    code, out, _ = await run("list", "--company", company, **remote)
    assert (code, mine in out) == (0, True)
    assert "the transcript service does not answer" in out


async def test_top_on_a_terminal_is_redrawn_until_it_is_interrupted(
    temporal: Client, environment: dict[str, str]
) -> None:
    company = str(uuid.uuid4())
    first = await start(temporal, COMPANY_ID=company)
    await until_listed(temporal, first)
    terminal, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "top", "--company", company),
        env={**os.environ, **environment, "TERM": "xterm"},
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
    )
    os.close(other_end)
    shown = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(shown), os.fdopen(terminal, "rb", 0)
    )
    try:
        async with asyncio.timeout(60):
            await shown.readuntil(b"1 run at work")
            await shown.readuntil(first[:8].encode())
            second = await start(temporal, COMPANY_ID=company)
            await shown.readuntil(b"2 runs at work")
            await shown.readuntil(second[:8].encode())
            process.terminate()
            assert await process.wait() == 0
    finally:
        transport.close()
