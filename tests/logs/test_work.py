"""Whether a tool works is read from its processes: those that began with it, and older ones that use CPU."""

from datetime import timedelta

import pytest

from agent_runs.logs.work import Work

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def listing(*others: tuple[int, float]) -> bytes:
    """What the runner lists an hour after its begin: OpenCode, which uses CPU, and others by begin and CPU time."""
    rows = ["7 1 360000 0 sh", "8 7 360000 99999 opencode"]
    rows += [f"{20 + n} 8 {360000 - began * 100} {int(cpu * 100)} a b" for n, (began, cpu) in enumerate(others)]
    return "\n".join(rows).encode()


def work(*others: tuple[int, float]) -> Work:
    parsed = Work.parse(listing(*others))
    assert parsed is not None
    return parsed


def test_opencode_itself_is_no_tool() -> None:
    assert not work().goes_on(HOUR / 2, None, timedelta())
    assert not work().goes_on(HOUR / 2, work(), 30 * SECOND)


@pytest.mark.parametrize("cpu", [0, 5])
def test_a_process_that_began_with_the_tool_may_work_whatever_it_uses(cpu: int) -> None:
    found = work((2, 1), (1801, cpu))
    assert found.goes_on(HOUR / 2, found, 30 * SECOND)


def test_an_older_process_works_if_it_uses_cpu() -> None:
    assert work((2, 1)).goes_on(HOUR / 2, None, timedelta())  # not known yet
    assert work((2, 1.5)).goes_on(HOUR / 2, work((2, 1)), 30 * SECOND)
    assert not work((2, 1.02)).goes_on(HOUR / 2, work((2, 1)), 30 * SECOND)
    assert not work((2, 9)).goes_on(HOUR / 2, work(), 30 * SECOND)  # it was not seen before


@pytest.mark.parametrize("text", [b"", b"opencode\nmake\n", b"1 2 3\n", b"1 2 -3 4 x\n", b"1 2 3 4 ok\nx\n"])
def test_anything_else_is_no_list(text: bytes) -> None:
    assert Work.parse(text) is None
