"""Runs pytest in a fork of a process that has imported the libraries: most of the 3 s that pytest starts in."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
LIBRARIES: Final = [
    *("pytest", "hypothesis", "pydantic", "temporalio.worker", "temporalio.testing", "sqlalchemy", "aiohttp"),
    *("asyncpg", "joserfc"),
]
SERVERS: Final = {"temporal", "postgresql", "postgres"}
"""Fixtures and parameters that start one, which takes seconds."""
SHIFT: Final = 100
"""Added to pytest's exit code, to tell it from a crash of the process."""


def run(folder: Path, arguments: Sequence[str], test_timeout: float, timeout: float) -> int:
    """Pytest's exit code in the checkout in that folder. A test, or all of them, that takes too long has failed."""
    context = get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    process = context.Process(target=_pytest, args=(folder, arguments, test_timeout))
    process.start()
    process.join(timeout)
    timed_out = process.exitcode is None
    with suppress(ProcessLookupError):  # it, or the servers that it left
        os.killpg(process.pid or 0, signal.SIGKILL)
    if timed_out:
        return pytest.ExitCode.TESTS_FAILED
    if (process.exitcode or 0) < SHIFT:
        raise RuntimeError(f"pytest did not run: {process.exitcode}")
    return (process.exitcode or 0) - SHIFT


class _Hurry:
    """Runs tests first that need no server and search no examples, and ends the process with one that takes too long.

    pytest-timeout cannot: it interrupts once, and hypothesis runs the failed example again.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def cost(item: pytest.Item) -> tuple[bool, bool]:
            needs = {*getattr(item, "fixturenames", ()), *getattr(getattr(item, "callspec", None), "id", "").split("-")}
            return not needs.isdisjoint(SERVERS), hasattr(getattr(item, "obj", None), "hypothesis")

        items.sort(key=cost)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        timer = threading.Timer(self._timeout, os._exit, [SHIFT + pytest.ExitCode.TESTS_FAILED])
        timer.start()
        try:
            return (yield)
        finally:
            timer.cancel()


def _pytest(folder: Path, arguments: Sequence[str], test_timeout: float) -> None:
    os.setpgrp()
    os.chdir(folder)
    sys.path[:] = [str(folder), *(path for path in sys.path if path and Path(path) != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    sys.exit(SHIFT + pytest.main(["--timeout", "0", *arguments], plugins=[_Hurry(test_timeout)]))
