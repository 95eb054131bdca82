import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dev_stack.host_address import address_for_pods
from dev_stack.plan import Plan, Ports
from dev_stack.stack import Stack, choose_ports
from dev_stack.subprocesses import Child, Program, StackError, run_while_alive, tail_of

LONG = "import time; print('up', flush=True); time.sleep(600)"


def program(state: Path, code: str, *, waits: bool = False) -> Program:
    return Program("the part", [sys.executable, "-c", code], state / "part.log", "Fix it.", waits=waits)


def logs_up(state: Path) -> bool:
    return "up" in tail_of(state / "part.log")


@pytest.fixture
async def child(tmp_path: Path) -> AsyncIterator[Child]:
    found = await Child.start(program(tmp_path, LONG))
    yield found
    await found.stop()


async def test_a_child_is_ready_when_its_check_succeeds_and_ends_when_it_is_stopped(
    child: Child, tmp_path: Path
) -> None:
    async def up() -> bool:
        return logs_up(tmp_path)

    await child.ready(up)
    await child.stop()
    assert child.ended.result() == -signal.SIGTERM


async def test_a_child_that_dies_is_reported_with_its_last_output_and_the_remedy(tmp_path: Path) -> None:
    child = await Child.start(program(tmp_path, "print('no such table'); raise SystemExit(3)"))

    async def never() -> bool:
        return False

    with pytest.raises(StackError, match=r"(?s)the part ended with exit code 3. Fix it.\n.*no such table"):
        await child.ready(never)
    await child.stop()


async def test_a_child_that_is_not_ready_in_time_is_an_error(child: Child) -> None:
    async def never() -> bool:
        return False

    with pytest.raises(StackError, match="was not ready after"):
        await child.ready(never, timedelta(milliseconds=100))


async def test_what_a_child_leaves_in_its_group_is_ended_with_it(tmp_path: Path) -> None:
    sub = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    child = await Child.start(program(tmp_path, sub))
    await child.ended
    pid = int(tail_of(tmp_path / "part.log"))
    await until_ended(pid)


async def test_work_is_cancelled_when_a_child_dies_and_the_child_is_reported(tmp_path: Path) -> None:
    child = await Child.start(program(tmp_path, "raise SystemExit('no disk')"))
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(StackError, match=r"(?s)exit code 1.*no disk"):
        await run_while_alive(work(), [child])
    assert cancelled.is_set()


async def test_work_that_ends_while_the_children_run_returns_its_result(child: Child) -> None:
    async def work() -> int:
        return 7

    assert await run_while_alive(work(), [child]) == 7


async def test_a_waiting_program_begins_at_the_line(tmp_path: Path) -> None:
    code = "import sys; print('got', sys.stdin.readline())"
    child = await Child.start(program(tmp_path, code, waits=True))
    child.go(b"go\n")
    assert await child.ended == 0
    assert tail_of(tmp_path / "part.log") == "got go"


async def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    parent = (
        "import asyncio, sys; from pathlib import Path; from dev_stack.subprocesses import Child, Program\n"
        f"program = Program('part', [sys.executable, '-c', {LONG!r}], Path({str(tmp_path)!r}) / 'part.log', '')\n"
        "async def main():\n"
        "    child = await Child.start(program)\n"
        "    print(child._process.pid, flush=True)\n"
        "    await child.ended\n"
        "asyncio.run(main())\n"
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", parent, stdout=asyncio.subprocess.PIPE)
    assert killed.stdout is not None
    pid = int(await killed.stdout.readline())
    killed.kill()
    await killed.wait()
    await until_ended(pid)


async def until_ended(pid: int) -> None:
    """Wait for a process that is not our child; it may be a zombie whose new parent is slow."""
    async with asyncio.timeout(60):
        while alive(pid):  # noqa: ASYNC110 - a strange process gives no event to await
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_ports_are_kept_from_one_start_to_the_next() -> None:
    first = choose_ports(Ports(), {})
    second = choose_ports(Ports(), {"temporal": first.temporal, "model": first.model})
    assert (second.temporal, second.model) == (first.temporal, first.model)
    chosen = [first.temporal, first.web_ui, first.temporal_http, first.temporal_metrics, first.cluster, first.model]
    assert len(set(chosen)) == len(chosen)
    assert 0 not in chosen


def test_a_fixed_port_is_kept_and_no_other_part_gets_it() -> None:
    free = choose_ports(Ports(), {}).web_ui
    chosen = choose_ports(Ports(web_ui=free), {"temporal": free})
    assert chosen.web_ui == free
    assert chosen.temporal != free


def test_a_fixed_port_that_is_in_use_is_refused_with_its_option() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(StackError, match=f"port {port} is in use.*--web-ui-port"):
            choose_ports(Ports(web_ui=port), {})


@pytest.mark.slow
async def test_a_port_that_was_taken_since_it_was_chosen_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a connection of another program may do, between our choice and the moment when a part listens."""
    before: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as another:

        def unlucky(ports: Ports, remembered: Mapping[str, int]) -> Ports:
            chosen = choose_ports(ports, remembered)
            before.append(len(before))
            return replace(chosen, web_ui=another.getsockname()[1]) if len(before) == 1 else chosen

        monkeypatch.setattr("dev_stack.stack.choose_ports", unlucky)
        reports: list[str] = []
        async with Stack.up(Plan(tmp_path), reports.append) as stack:
            assert stack.plan.ports.web_ui != another.getsockname()[1]
    assert any("taken" in sentence for sentence in reports)


NODE = {
    "spec": {"podCIDR": "10.200.0.0/24"},
    "status": {"addresses": [{"type": "InternalIP", "address": "192.168.5.9"}]},
}


def test_the_bridge_of_a_pod_network_on_this_machine_is_what_pods_reach() -> None:
    assert (
        address_for_pods([NODE], lambda target: "10.200.0.1" if target.startswith("10.200.") else None) == "10.200.0.1"
    )


def test_else_the_address_towards_the_nodes_is_what_pods_reach() -> None:
    routes = {"10.200.0.2": "192.168.5.2", "192.168.5.9": "192.168.5.2"}
    assert address_for_pods([NODE], routes.get) == "192.168.5.2"


def test_loopback_is_never_what_pods_reach() -> None:
    assert address_for_pods([NODE], lambda _: "127.0.0.1") is None
    assert address_for_pods([], lambda _: None) is None
