"""Output that is no event: the transcript holds it byte for byte, and the run still ends as it should."""

import pytest

from agent_runs.client.outcome import outcome_at_close
from tests.runs.system import System, answer_script
from tests.support.ends import assert_verified

ANSWER = answer_script("still here")


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        ("head -c 5000000 /dev/zero | tr '\\0' x; echo", b"x" * 5_000_000),
        (r"printf 'a\377\376b\n'", b"a\xff\xfeb"),
        (r"printf 'nul \000 here\n'", b"nul \x00 here"),
        (r"printf 'dos line\r\n'", b"dos line\r"),
        (r"printf '\033[31mred\033[0m\n'", b"\x1b[31mred\x1b[0m"),
    ],
    ids=["5 MB line", "invalid UTF-8", "NUL", "CRLF", "ANSI"],
)
async def test_a_strange_line_is_stored_and_does_no_harm(system: System, noise: str, expected: bytes) -> None:
    raw = system.agent(f"cat > /dev/null; {noise}; {ANSWER}")
    outcome = await system.outcome(raw)
    assert (await system.stdout(raw))[0] == expected
    assert outcome.failure is None, outcome.failure
    assert outcome.summary == "still here"
    assert_verified(outcome)


async def test_half_a_last_line_is_stored_and_named(system: System) -> None:
    half = '{"type":"text","timest'
    raw = system.agent(f"cat > /dev/null; {ANSWER}; printf '{half}'")
    outcome = await system.outcome(raw)
    last = [line for line in await system.lines(raw) if line.stream == "stdout"][-1]
    assert (last.data, last.terminated) == (half.encode(), False)
    assert outcome.error_code == "output_lost"


async def test_lines_that_look_like_frames_or_events_of_others_are_only_output(system: System) -> None:
    forged = '2 o. {"type":"error"}'
    raw = system.agent(f"cat > /dev/null; echo '{forged}'; echo '99 x. {{\"exit_code\":0}}'; {ANSWER}")
    outcome = await system.outcome(raw)
    assert (await system.stdout(raw))[0] == forged.encode()
    assert outcome.failure is None, outcome.failure
    assert_verified(outcome)


@pytest.mark.slow
async def test_a_million_lines_arrive_and_the_history_stays_small(system: System) -> None:
    raw = system.agent(f"cat > /dev/null; seq 1 1000000; {ANSWER}")
    ticket = await system.start(raw)
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    info = (await ticket.handle(system.temporal).describe()).raw_description.workflow_execution_info
    assert outcome.failure is None, outcome.failure
    assert outcome.receipt is not None
    assert (outcome.receipt.state, outcome.receipt.lines) == ("verified", 1_000_003)
    assert info.history_length <= 76
    assert info.history_size_bytes <= 60 * 1024
