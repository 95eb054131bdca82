"""A caller in a process of its own: attaches all its wakes concurrently.

`python -m tests.runs.concurrent_attach ADDRESS QUEUE` takes wakes, one per line as JSON, until the line `go`; it
prints one line of JSON per ticket, in the order of the wakes.
"""

import asyncio
import dataclasses
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from agent_runs.client.attach import attach
from agent_runs.client.connection import run_to_end
from agent_runs.client.settings import ClientSettings
from agent_runs.client.wake import Wake

WAKES: Final = TypeAdapter(Wake)


async def main() -> None:
    address, queue = sys.argv[1:]
    client = await Client.connect(address, data_converter=pydantic_data_converter)
    wakes = []
    print("ready", flush=True)
    while (line := sys.stdin.readline().strip()) != "go":
        wakes.append(WAKES.validate_json(line))
    settings = ClientSettings(task_queue=queue)
    for ticket in await asyncio.gather(*(attach(client, settings, wake) for wake in wakes)):
        print(json.dumps(dataclasses.asdict(ticket), default=str))


async def attach_all(client: Client, queue: str, shares: Sequence[Sequence[Wake]]) -> list[dict[str, Any]]:
    """The tickets of all wakes, each share attached by a process of its own, all at the same time."""
    address = client.service_client.config.target_host
    callers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.runs.concurrent_attach", address, queue, stdin=PIPE, stdout=PIPE, limit=1 << 24
        )
        for _ in shares
    ]
    for caller, share in zip(callers, shares, strict=True):
        await _send_wakes(caller, share)
    for caller in callers:
        assert caller.stdin is not None
        caller.stdin.write(b"go\n")
    answers = await asyncio.gather(*(caller.communicate() for caller in callers))
    assert [caller.returncode for caller in callers] == [0] * len(callers)
    return [json.loads(line) for printed, _ in answers for line in printed.splitlines()]


async def _send_wakes(caller: Process, share: Sequence[Wake]) -> None:
    assert caller.stdin is not None
    assert caller.stdout is not None
    assert await caller.stdout.readline() == b"ready\n"
    for wake in share:
        caller.stdin.write(WAKES.dump_json(wake) + b"\n")
    await caller.stdin.drain()


if __name__ == "__main__":
    run_to_end(main)
