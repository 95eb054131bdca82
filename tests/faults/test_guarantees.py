"""What is kept when something goes wrong: each row of docs/guarantees.md."""

from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.faults.conftest import Running
from tests.faults.facts import Expected, judged
from tests.faults.nursery import Nursery
from tests.faults.scene import scene
from tests.faults.stories import rows
from tests.faults.table import PAGE, rows_of

ROWS = [pytest.param(row.name, marks=() if row.quick else pytest.mark.slow, id=row.name) for row in rows().values()]


@pytest.mark.timeout(580)
@pytest.mark.parametrize("name", ROWS)
async def test_what_is_promised_is_kept(running: Running, name: str) -> None:
    verdict = await running.verdict(name)
    assert verdict.broken == {}, verdict


async def test_the_checker_sees_what_is_wrong(temporal: Client, nursery: Nursery, tmp_path: Path) -> None:
    bound = timedelta(seconds=1)
    async with scene("wrong", temporal, nursery, tmp_path) as made:
        made.agent('say 0 5; echo line 3; echo 1 >> {folder}/starts; echo "$CANARY_TOKEN" > {folder}/other.log; finish')
        ticket = await made.start()
        await made.worker()
        outcome = await made.outcome(ticket)
        verdict = await judged(made, "all kinds of things", Expected("cancelled", (None,), bound), outcome, 2 * bound)
    assert verdict.broken == {
        "one_job": "no: the agent of attempt ['1'] began again",
        "lines": "no: attempt 1 has 5 different lines of 6, or out of order",
        "name": "no: None of (None,), None",
        "in_time": "no: 2 s",
        "secrets": "no: ['config.env in other.log']",
    }


def test_the_document_has_the_rows_of_the_table() -> None:
    document = PAGE.read_text()
    assert rows_of(document) == list(rows())
    assert "| no:" not in document
