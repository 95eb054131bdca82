"""A container's process is signalled without losing its exit code."""

import asyncio
import signal

from dev_stack.cluster.containers import send_signal


async def test_a_process_that_ends_while_it_is_signalled_keeps_its_exit_code() -> None:
    codes = set()
    for _ in range(50):
        process = await asyncio.create_subprocess_exec("sh", "-c", "exit 7")
        while process.returncode is None:
            send_signal(process, signal.SIGCONT)
            await asyncio.sleep(0)
        codes.add(process.returncode)
    assert codes == {7}
