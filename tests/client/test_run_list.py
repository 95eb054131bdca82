"""A list shows the runs that its filters select, whatever is written into them."""

import asyncio
import itertools
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from agent_runs.client.run_list import (
    AT_WORK,
    FAILURE_CODES,
    MAX_TEXT,
    InvalidFilter,
    RunFilter,
    RunsUnavailable,
    list_page,
    parse_since,
    quoted,
)
from agent_runs.client.runs import UnknownRun, find_run
from agent_runs.contracts.identity import WORKFLOW_TYPE
from tests.support.cases import case
from workflows import attributes

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Runs:
    """Runs of a company of their own; nobody works on them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.company = str(uuid.uuid4())

    async def start(self, run_id: str, **values: str) -> None:
        named = {"COMPANY_ID": self.company, "PAPERCLIP_RUN_ID": run_id, "RUN_PHASE": "queued", **values}
        pairs = [SearchAttributePair[str](attribute(name), value) for name, value in named.items()]
        await self.client.start_workflow(
            WORKFLOW_TYPE,
            id=f"agent-run:{uuid.uuid4()}",
            task_queue="nobody",
            search_attributes=TypedSearchAttributes(pairs),
        )

    async def listed(self, count: int, **values: str) -> set[str]:
        """The ids of the runs that pass; waits until all of them are listed, as Temporal lists a new one late."""
        wanted = RunFilter.parse({"company": self.company, **values})
        async with asyncio.timeout(60):
            while len((found := await list_page(self.client, wanted)).runs) < count:  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0.05)
        return {run.key.run_id for run in found.runs}


def attribute(name: str) -> SearchAttributeKey[str]:
    return getattr(attributes, name)  # type: ignore[no-any-return]  # a search attribute


@pytest.fixture
def runs(temporal: Client) -> Runs:
    return Runs(temporal)


async def test_each_filter_selects_what_it_names(runs: Runs) -> None:
    await runs.start("one", AGENT_ID="ada", TASK_KEY="ISSUE-1", MODEL="a/x", RUN_PHASE="running")
    await runs.start("two", AGENT_ID="bob", TASK_KEY="it's ISSUE-2", MODEL="a/y")
    await runs.start("three", AGENT_ID="bob", FAILURE_KIND="k8s_pod_lost", RUN_PHASE="failed")
    assert await runs.listed(3) == {"one", "two", "three"}
    for values, expected in (
        ({"agent": "bob"}, {"two", "three"}),
        ({"task": "it's ISSUE-2"}, {"two"}),
        ({"model": "a/x"}, {"one"}),
        ({"failure": "k8s_pod_lost"}, {"three"}),
        ({"phase": "running"}, {"one"}),
        ({"phase": "queued"}, {"two"}),
        ({"phase": "failed"}, {"three"}),
        ({"search": "ISSUE"}, {"one"}),
        ({"search": "thr"}, {"three"}),
        ({"search": "ada", "since": "1h", "state": "working"}, {"one"}),
        ({"since": "2100-01-01"}, set[str]()),
    ):
        assert await runs.listed(len(expected), **values) == expected, values


@pytest.mark.parametrize("task", ["x' OR '1'='1", "' --", "a'; DROP TABLE", "''", "%", "_", "') OR (TaskKey != '"])
async def test_a_text_never_becomes_a_part_of_the_query(runs: Runs, task: str) -> None:
    await runs.start("one", TASK_KEY="other")
    await runs.listed(1)
    with suppress(InvalidFilter):
        assert await runs.listed(0, task=task) == set()


async def test_pages_follow_one_another_without_repeats(runs: Runs) -> None:
    for number in range(5):
        await runs.start(f"run-{number}")
    await runs.listed(5)
    wanted, seen, cursor = RunFilter(company=runs.company), list[str](), None
    while True:
        page = await list_page(runs.client, wanted, cursor, limit=2)
        seen += [run.key.run_id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(seen) == [f"run-{number}" for number in range(5)]


async def test_a_run_is_found_by_the_beginning_of_its_id_if_it_is_the_only_one(runs: Runs) -> None:
    start = str(uuid.uuid4())[:8]
    await runs.start(f"{start}-1")
    await runs.listed(1)
    assert (await find_run(runs.client, start)).key.run_id == f"{start}-1"
    await runs.start(f"{start}-2")
    await runs.listed(2)
    with pytest.raises(UnknownRun, match="several runs"):
        await find_run(runs.client, start)
    assert (await find_run(runs.client, f"{start}-2")).key.run_id == f"{start}-2"


async def test_a_server_that_refuses_is_reported_without_its_text(temporal: Client) -> None:
    class Broken(RunFilter):
        condition = "NoSuchAttribute = 1"

    with pytest.raises(RunsUnavailable, match=r"^Temporal refused the query \(INVALID_ARGUMENT\)$"):
        await list_page(temporal, Broken())


@given(st.text(max_size=MAX_TEXT + 5))
def test_what_is_quoted_is_one_text(value: str) -> None:
    try:
        found = quoted(value)
    except ValueError:
        return
    assert (found[0], found[-1]) == ("'", "'")
    assert "'" not in found[1:-1].replace("''", "")
    assert "\\" not in found
    assert found[1:-1].replace("''", "'") == value


NAMES = ["agent", "company", "task", "model", "search"]
UNSEARCHABLE = ["a\\", 'a"b', "a?", "'a", "a\nb", "a\x00", "x" * (MAX_TEXT + 1), "\ud800"]


def test_what_temporal_cannot_search_for_is_refused_by_name() -> None:
    for name, value in itertools.product(NAMES, UNSEARCHABLE):
        with case(name, value), pytest.raises(InvalidFilter, match=rf"^{name}: "):
            RunFilter.parse({name: value + "." if value.endswith("\n") else value})


def test_a_misspelt_choice_names_the_nearest() -> None:
    with pytest.raises(InvalidFilter) as unknown:
        RunFilter.parse({"failure": "nope"})
    assert str(unknown.value).endswith(f"one of {', '.join(FAILURE_CODES)}")
    with pytest.raises(InvalidFilter, match="failure: there is no such failure; did you mean k8s_pod_lost"):
        RunFilter.parse({"failure": "k8s_pod_lots"})
    with pytest.raises(InvalidFilter, match="phase: there is no such phase; did you mean running"):
        RunFilter.parse({"phase": "runing"})


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90m", NOW - timedelta(minutes=90)),
        ("24h", NOW - timedelta(days=1)),
        ("7d", NOW - timedelta(days=7)),
        ("999999w", NOW - timedelta(days=36_500)),
        ("2026-01-01", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-01T10:00:00+02:00", datetime(2026, 1, 1, 8, tzinfo=UTC)),
        ("", None),
    ],
)
def test_a_time_is_an_age_or_a_date(text: str, at: datetime | None) -> None:
    assert parse_since(text, NOW) == at


@pytest.mark.parametrize(
    "text", ["yesterday", "-1d", "1y", "2026-13-01", "1.5h", "0001-01-01T00:00:00+23:00", "' OR 1"]
)
def test_any_other_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidFilter, match="since: write an age"):
        parse_since(text, NOW)


def test_runs_at_work_are_those_without_an_outcome() -> None:
    assert RunFilter(state="working").condition == AT_WORK
