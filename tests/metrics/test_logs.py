"""Every line that a worker logs is one JSON object, whoever logs it, and says whose run it is about."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from tests.faults.environment import start_server
from tests.metrics.scrape import free_address
from tests.runs.system import open_system, replay_script
from tests.service.test_life import started

PRELUDE = """
import asyncio, gc, logging, sys, threading, warnings
import structlog
from agent_runs.service.logs import configure_logs
configure_logs()
def fail(): raise ValueError("line one\\nline two \\u2028 {not json")
"""
WAYS = {
    "ours": ("structlog.get_logger().info('thing.done', text='a\\nb')", "thing.done"),
    "our error": (
        "try: fail()\nexcept ValueError: structlog.get_logger().exception('thing.failed')",
        "thing.failed",
    ),
    "a library": ("logging.getLogger('sqlalchemy.pool').warning('two\\nlines %s', 1)", "two\nlines 1"),
    "a library's traceback": (
        "try: fail()\nexcept ValueError: logging.getLogger('uvicorn.error').exception('broken')",
        "broken",
    ),
    "asyncio": (
        """
async def broken(): fail()
async def main():
    asyncio.get_running_loop().create_task(broken())
    await asyncio.sleep(0)
asyncio.run(main()); gc.collect()
""",
        "Task exception was never retrieved",
    ),
    "a warning": ("warnings.warn('old')", "old"),
    "a thread": ("thread = threading.Thread(target=fail); thread.start(); thread.join()", "worker.thread_ended"),
    "an uncaught error": ("fail()", "worker.crashed"),
    "an ignored error": (
        "class Broken:\n    def __del__(self): fail()\nBroken(); gc.collect()",
        "error.ignored",
    ),
}


def lines_of(program: str) -> list[dict[str, Any]]:
    """What a process logs; nothing but JSON objects, and nothing on standard error."""
    result = subprocess.run([sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=120)
    assert result.stderr == ""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(isinstance(line, dict) for line in lines)
    return lines


@pytest.mark.parametrize("way", WAYS)
def test_a_line_is_one_json_object_whoever_logs_it(way: str) -> None:
    program, expected = WAYS[way]
    [line] = lines_of(program)
    assert expected in line["event"]
    assert line["level"]
    assert line["timestamp"].endswith("Z")
    if "fail()" in program:
        assert "ValueError: line one\nline two" in line["exception"]
        assert "Traceback" in line["exception"]


def test_a_long_text_is_cut_in_its_middle() -> None:
    [line] = lines_of("structlog.get_logger().info('thing.done', text='a' * 50000 + 'end')")
    assert line["text"].endswith("end")
    assert len(line["text"]) < 21_000


async def test_a_failed_step_is_logged_with_its_traceback_and_the_ids_of_its_run(
    temporal: Client, tmp_path: Path
) -> None:
    async with open_system(temporal, tmp_path) as system:
        system.embedded.faults.http(method="POST", path="/jobs$", status=503)
        raw = system.agent(replay_script("text-stdin"))
        async with started({**system.environment, **system.worker_environment}) as process:
            ticket = await system.start(raw)
            outcome = await outcome_at_close(ticket.handle(temporal))
            process.send_signal(signal.SIGTERM)
            log, errors = await process.communicate()
    assert outcome.failure is None
    assert errors == b""
    lines = [json.loads(line) for line in log.splitlines()]
    [failed] = [line for line in lines if "exception" in line]
    assert (failed["run_id"], failed["agent_id"], failed["attempt"]) == (raw["runId"], raw["agent"]["id"], 1)
    assert (failed["workflow_id"], failed["temporal_run_id"]) == (ticket.workflow_id, ticket.workflow_run_id)
    assert failed["activity"] == "create_job"
    assert "Traceback" in failed["exception"]
    assert "injected fault" in failed["exception"]


async def test_what_temporals_core_logs_is_json_too(tmp_path: Path) -> None:
    server = await start_server(tmp_path / "temporal.db", int(free_address().rpartition(":")[2]))
    async with (
        open_system(server.client, tmp_path) as system,
        started({**system.environment, **system.worker_environment}) as process,
    ):
        assert process.stdout is not None
        while json.loads(await process.stdout.readline())["event"] != "worker.started":
            pass
        await server.shutdown()
        while "fields" not in (line := json.loads(await process.stdout.readline())):
            pass
        process.kill()
        await process.communicate()  # else its pipe is never seen to end
    assert set(line) == {"timestamp", "level", "fields"}
    assert "message" in line["fields"]
