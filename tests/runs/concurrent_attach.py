"""A caller in a process of its own: attaches all its requests concurrently.

`python -m tests.runs.concurrent_attach ADDRESS QUEUE` takes requests, one per line as JSON, until the line `go`; it
prints one line of JSON per ticket, in the order of the requests.
"""

import asyncio
import dataclasses
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Any

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from agent_runs.client.attach import attach
from agent_runs.client.connection import run_to_end
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.request import RunRequest


async def main() -> None:
    address, queue = sys.argv[1:]
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    requests = []
    print("ready", flush=True)
    while (line := sys.stdin.readline().strip()) != "go":
        requests.append(RunRequest.model_validate_json(line))
    settings = ClientSettings(task_queue=queue)
    for ticket in await asyncio.gather(*(attach(client, settings, request) for request in requests)):
        print(json.dumps(dataclasses.asdict(ticket), default=str))


async def attach_all(client: Client, queue: str, shares: Sequence[Sequence[RunRequest]]) -> list[dict[str, Any]]:
    """The tickets of all requests, each share attached by a process of its own, all at the same time."""
    address = client.service_client.config.target_host
    callers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.runs.concurrent_attach", address, queue, stdin=PIPE, stdout=PIPE, limit=1 << 24
        )
        for _ in shares
    ]
    for caller, share in zip(callers, shares, strict=True):
        await _send_requests(caller, share)
    for caller in callers:
        assert caller.stdin is not None
        caller.stdin.write(b"go\n")
    answers = await asyncio.gather(*(caller.communicate() for caller in callers))
    assert [caller.returncode for caller in callers] == [0] * len(callers)
    return [json.loads(line) for printed, _ in answers for line in printed.splitlines()]


async def _send_requests(caller: Process, share: Sequence[RunRequest]) -> None:
    assert caller.stdin is not None
    assert caller.stdout is not None
    assert await caller.stdout.readline() == b"ready\n"
    for request in share:
        caller.stdin.write(request.model_dump_json().encode() + b"\n")
    await caller.stdin.drain()


if __name__ == "__main__":
    run_to_end(main)
