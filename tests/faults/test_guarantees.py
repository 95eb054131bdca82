"""The guarantees hold when something goes wrong: each row of docs/guarantees.md."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.faults.checks import Expected, check_row
from tests.faults.conftest import RowRuns
from tests.faults.environment import open_environment
from tests.faults.rows import rows
from tests.faults.scenarios import Row
from tests.faults.table import PAGE, rows_of
from tests.support.process_pool import ProcessPool


def marks(row: Row) -> list[pytest.MarkDecorator]:
    slow = [] if row.quick else [pytest.mark.slow]
    return [*slow, pytest.mark.real_agents] if row.agent else slow


ROWS = [pytest.param(row.name, marks=marks(row), id=row.name) for row in rows().values()]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ROWS)
async def test_a_guarantee_holds(row_runs: RowRuns, name: str) -> None:
    result = await row_runs.result(rows()[name])
    assert result.failures == {}, result


async def test_the_checks_find_what_is_wrong(temporal: Client, process_pool: ProcessPool, tmp_path: Path) -> None:
    bound = timedelta(seconds=1)
    async with open_environment("wrong", temporal, process_pool, tmp_path) as env:
        env.agent(
            'write_lines 0 5; echo line 3; echo 1 >> {folder}/starts; echo "$CANARY_TOKEN" > {folder}/other.log; finish'
        )
        ticket = await env.start()
        await env.worker()
        outcome = await env.outcome(ticket)
        result = await check_row(env, "all kinds of things", Expected("cancelled", (None,), bound), outcome, 2 * bound)
    assert result.failures == {
        "one_job": "no: the agent of attempt ['1'] started twice",
        "lines": "no: attempt 1 has the lines [0, 1, 2, 3, 4, 3]",
        "name": "no: None of (None,), None",
        "in_time": "no: 2 s",
        "secrets": "no: ['config.env in other.log']",
    }


def test_the_document_has_the_rows_of_the_table() -> None:
    document = PAGE.read_text()
    assert rows_of(document) == list(rows())
    assert not re.search(r"[|:] no:", document)
