"""What a restarted step makes of what the one before it stored and said, and what the outcome says of it."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from activities.parse_transcript import DIFFERS, TranscriptParsing, lost
from activities.stream_logs import BEAT, Account, Place, Pulse, last_heartbeat, resumed, rows, told
from cluster.follower import Batch, Cursor, LogLine
from contracts.identity import AttemptKey, RunKey
from contracts.messages import ParseTranscript, StreamEnd, StreamProgress
from contracts.outcome import ContainerEnd, Gap, OutputReceipt
from transcripts.store import Line, SqlTranscripts
from workflows.steps import HEARTBEAT

SECOND = datetime(2026, 11, 22, 1, 2, 3, tzinfo=UTC)
KEY = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"), attempt=1)


def account(*sequences: int, gaps: tuple[Gap, ...] = ()) -> Account:
    known = Account()
    lines = [LogLine(sequence, "stdout", b"x", terminated=True) for sequence in sequences]
    known.add(lines, lines, gaps)
    return known


def test_the_heartbeat_says_where_in_the_log_to_go_on() -> None:
    place = Place(account(5, 9), Cursor(after=9, first=7, second=SECOND, framed=True))
    assert (place.progress.sequence, place.progress.needed_from, place.progress.second) == (9, 7, SECOND)
    again = StreamProgress.model_validate(json.loads(place.progress.model_dump_json()))
    cursor = resumed(account(5, 9), again)
    assert (cursor.after, cursor.first, cursor.second) == (9, 7, SECOND)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(Place(account(5), Cursor(after=5)), id="a cursor of the store alone"),
        pytest.param(Place(account(5), Cursor(after=5, first=6, second=SECOND, framed=False)), id="no frames"),
        pytest.param(Place(account(5), Cursor(after=9, first=7, second=SECOND, framed=True)), id="not stored yet"),
    ],
)
def test_what_is_not_known_is_not_said(place: Place) -> None:
    assert place.progress.needed_from is None


def test_a_later_store_makes_an_older_heartbeat_no_worse() -> None:
    cursor = resumed(account(5, 9, 12), StreamProgress(sequence=9, needed_from=7, second=SECOND))
    assert (cursor.after, cursor.first, cursor.second) == (12, 7, SECOND)


@pytest.mark.parametrize(
    "hint",
    [
        StreamProgress(),
        StreamProgress(sequence=9),
        StreamProgress(sequence=20, needed_from=15, second=SECOND),
        StreamProgress(sequence=9, needed_from=11, second=SECOND),
        StreamProgress(sequence=9, needed_from=0),
        StreamProgress(sequence=-3, needed_from=-5),
    ],
)
def test_a_heartbeat_that_cannot_be_true_is_forgotten(hint: StreamProgress) -> None:
    assert resumed(account(5, 9), hint) == Cursor(after=9)


def test_hundreds_of_streams_share_the_heartbeats_and_none_comes_near_its_time_out() -> None:
    assert Pulse(1).pause == Pulse(100).pause == BEAT
    assert Pulse(250).pause == timedelta(seconds=5)
    assert Pulse(100_000).pause <= HEARTBEAT / 3


@pytest.mark.parametrize("details", [[], ["nonsense"], [{"sequence": "x"}], [None], [7]])
async def test_a_heartbeat_that_cannot_be_read_is_none(details: list[object]) -> None:
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, heartbeat_details=details)
    assert environment.run(last_heartbeat) == StreamProgress()


def test_a_stored_gap_is_not_asked_for_again() -> None:
    known = account(4, gaps=(Gap(after_sequence=4, frames=6),))
    assert resumed(known, StreamProgress()) == Cursor(after=4, covered=10)


def test_what_is_missing_before_the_last_stored_line_is_for_the_receipt_only() -> None:
    before, behind = Gap(after_sequence=2), Gap(after_sequence=9, frames=3)
    batch = Batch(gaps=[before, behind])
    assert [row.sequence for row in rows(told(batch, account(9)), SECOND)] == [10]


# the final fold


GOOD = (
    b'{"type":"step_start","timestamp":1,"sessionID":"ses_1","part":{"type":"step-start"}}',
    b'{"type":"text","timestamp":2,"sessionID":"ses_1","part":{"id":"p","type":"text","text":"done","time":{"end":2}}}',
    b'{"type":"step_finish","timestamp":3,"sessionID":"ses_1","part":{"reason":"stop","tokens":{"input":1,"output":1}}}',
)


@pytest.mark.parametrize(
    ("receipt", "said"),
    [
        pytest.param(OutputReceipt(state="verified"), (), id="verified"),
        pytest.param(OutputReceipt(state="differs"), (DIFFERS,), id="differs, nobody knows where"),
        pytest.param(
            OutputReceipt(state="differs", gaps=(Gap(after_sequence=1, frames=1),)),
            ("Some output in the middle could not be read: usage and cost may be too low",),
            id="differs by a gap",
        ),
    ],
)
async def test_the_report_says_truthfully_what_is_wrong_with_the_output(
    receipt: OutputReceipt, said: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = await SqlTranscripts.open(f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('t')}/transcripts.db")
    at = datetime.now(UTC) - timedelta(seconds=1)
    await store.append(KEY, [Line(number + 2, "stdout", line, at=at) for number, line in enumerate(GOOD)])
    end = StreamEnd(container=ContainerEnd(exit_code=0), receipt=receipt)
    order = ParseTranscript(attempt=KEY, end=end, model="m/m")
    report = await ActivityEnvironment().run(TranscriptParsing(store).parse_transcript, order)
    await store.close()
    assert report.failure is None
    assert tuple(warning for warning in report.warnings if "output" in warning) == said


def test_a_loss_at_the_end_is_told_from_one_in_the_middle() -> None:
    receipt = OutputReceipt(state="differs", gaps=(Gap(after_sequence=10, frames=None),))
    assert (lost(receipt, 10), lost(receipt, 30), lost(OutputReceipt(), 3)) == ("end", "middle", "nothing")
