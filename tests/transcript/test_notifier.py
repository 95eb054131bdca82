"""The lines that readers get without querying the store are those of the store: nothing more, nothing missing."""

import asyncio
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from agent_runs.transcript.notifier import TAIL_BYTES, AttemptNotifier
from agent_runs.transcript.store import Line

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ALL = 2**40


def batch(first: int, last: int, size: int = 1) -> list[Line]:
    return [Line(n, "stdout", b"x" * size, at=NOON) for n in range(first, last + 1)]


async def test_lines_are_given_from_where_they_were_announced() -> None:
    notifier = AttemptNotifier()
    assert notifier.after(0, ALL) is None
    await notifier.announce(batch(5, 7), 4)
    await notifier.announce(batch(8, 9), 7)
    assert notifier.after(3, ALL) is None
    assert notifier.after(4, ALL) == batch(5, 9)
    assert notifier.after(8, ALL) == batch(9, 9)
    assert notifier.after(9, ALL) == []


async def test_lines_of_another_process_in_between_are_read_from_the_store() -> None:
    notifier = AttemptNotifier()
    await notifier.announce(batch(1, 3), 0)
    await notifier.announce(batch(7, 8), 6)
    assert notifier.after(3, ALL) is None
    assert notifier.after(6, ALL) == batch(7, 8)


async def test_a_late_announcement_is_ignored() -> None:
    notifier = AttemptNotifier()
    await notifier.announce(batch(4, 6), 3)
    await notifier.announce(batch(1, 3), 0)
    assert notifier.changes == 2
    assert notifier.after(0, ALL) is None
    assert notifier.after(3, ALL) == batch(4, 6)


async def test_pages_and_the_held_tail_are_bounded() -> None:
    notifier = AttemptNotifier()
    await notifier.announce(batch(1, 8, TAIL_BYTES // 4), 0)
    assert notifier.after(0, ALL) is None
    assert notifier.after(4, TAIL_BYTES // 2) == batch(5, 6, TAIL_BYTES // 4)
    await notifier.announce(batch(9, 9, TAIL_BYTES + 1), 8)
    assert notifier.after(8, ALL) is None
    assert notifier.after(9, ALL) == []


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, TAIL_BYTES)), max_size=12), st.data())
def test_a_page_is_the_next_part_of_the_store_whatever_was_announced(
    writes: list[tuple[int, bool, int]], data: st.DataObject
) -> None:
    notifier, stored = AttemptNotifier(), list[Line]()
    for count, ours, size in writes:
        before = len(stored)
        stored += batch(before + 1, before + count, size)
        if ours:
            asyncio.run(notifier.announce(stored[before:], before))
        after = data.draw(st.integers(0, len(stored)))
        page = notifier.after(after, data.draw(st.integers(1, ALL)))
        assert page is None or page == stored[after : after + len(page)]
        if ours and after < len(stored):
            assert page != []


async def test_a_change_without_lines_wakes_readers_and_is_counted_as_a_store_change() -> None:
    notifier = AttemptNotifier()
    waiting = asyncio.create_task(notifier.wait_for_change(0, timedelta(hours=1)))
    await asyncio.sleep(0)
    await notifier.announce()
    await waiting
    assert (notifier.changes, notifier.store_changes) == (1, 1)
