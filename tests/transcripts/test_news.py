"""What readers are handed without asking the store is what the store has: nothing more, and nothing missing."""

import asyncio
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from transcripts.news import TAIL_BYTES, News
from transcripts.store import Line

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ALL = 2**40


def batch(first: int, last: int, size: int = 1) -> list[Line]:
    return [Line(n, "stdout", b"x" * size, at=NOON) for n in range(first, last + 1)]


async def test_lines_are_handed_over_from_where_they_were_announced() -> None:
    news = News()
    assert news.after(0, ALL) is None
    await news.announce(batch(5, 7), 4)
    await news.announce(batch(8, 9), 7)
    assert news.after(3, ALL) is None
    assert news.after(4, ALL) == batch(5, 9)
    assert news.after(8, ALL) == batch(9, 9)
    assert news.after(9, ALL) == []


async def test_what_another_process_wrote_in_between_is_for_the_store_to_tell() -> None:
    news = News()
    await news.announce(batch(1, 3), 0)
    await news.announce(batch(7, 8), 6)
    assert news.after(3, ALL) is None
    assert news.after(6, ALL) == batch(7, 8)


async def test_news_that_comes_late_is_passed_over() -> None:
    news = News()
    await news.announce(batch(4, 6), 3)
    await news.announce(batch(1, 3), 0)
    assert news.count == 2
    assert news.after(0, ALL) is None
    assert news.after(3, ALL) == batch(4, 6)


async def test_a_page_and_what_is_held_are_bounded() -> None:
    news = News()
    await news.announce(batch(1, 8, TAIL_BYTES // 4), 0)
    assert news.after(0, ALL) is None
    assert news.after(4, TAIL_BYTES // 2) == batch(5, 6, TAIL_BYTES // 4)
    await news.announce(batch(9, 9, TAIL_BYTES + 1), 8)
    assert news.after(8, ALL) is None
    assert news.after(9, ALL) == []


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, TAIL_BYTES)), max_size=12), st.data())
def test_whatever_is_announced_a_page_is_the_next_part_of_the_store(
    writes: list[tuple[int, bool, int]], data: st.DataObject
) -> None:
    news, stored = News(), list[Line]()
    for count, ours, size in writes:
        before = len(stored)
        stored += batch(before + 1, before + count, size)
        if ours:
            asyncio.run(news.announce(stored[before:], before))
        after = data.draw(st.integers(0, len(stored)))
        page = news.after(after, data.draw(st.integers(1, ALL)))
        assert page is None or page == stored[after : after + len(page)]
        if ours and after < len(stored):
            assert page != []


async def test_a_change_without_lines_wakes_and_is_counted_apart() -> None:
    news = News()
    waiting = asyncio.create_task(news.beyond(0, timedelta(hours=1)))
    await asyncio.sleep(0)
    await news.announce()
    await waiting
    assert (news.count, news.untold) == (1, 1)
