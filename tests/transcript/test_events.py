"""Lines and events from any bytes."""

import gc
import json
import sys
import tracemalloc
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runs.contracts.outcome import ContainerEnd, Report
from agent_runs.transcript.events import Event, decode, decode_beginning, plain_text, printable
from agent_runs.transcript.fold import Fold
from agent_runs.transcript.lines import LINE_LIMIT, Line
from tests.support.lines import file_line
from tests.support.saved_output import LineSplitter, fold_chunks
from tests.transcript.captures import ALL

STEP = b'{"type":"step_finish","sessionID":"ses_1","part":{"id":"p1","messageID":"m","reason":"stop","tokens":%s}}'

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = """
    id messageID text synthetic reason cost tokens tool callID state message input output cache read status error title
    name data statusCode isRetryable ref
"""
keys = st.sampled_from(KEYS.split())
odd_objects = st.recursive(
    st.dictionaries(keys, json_values, max_size=6),
    lambda inner: st.dictionaries(keys, inner | json_values, max_size=6),
    max_leaves=4,
)
types = st.sampled_from(["step_start", "step_finish", "text", "tool_use", "error", "reasoning", "done", ""])


@st.composite
def odd_lines(draw: st.DrawFn) -> bytes:
    event = {
        "type": draw(types | json_values),
        "sessionID": draw(st.just("ses_1") | json_values),
        "part": draw(odd_objects | json_values),
        "error": draw(odd_objects | json_values),
    }
    return json.dumps(event, ensure_ascii=draw(st.booleans())).encode("utf-8", errors="surrogatepass")


any_line = odd_lines() | st.binary(max_size=80) | st.sampled_from([c.stdout.split(b"\n")[0] for c in ALL[:20]])


def report_of(chunks: list[bytes]) -> Report:
    fold = fold_chunks(chunks, chunks, resumed_session="ses_other")
    assert len(fold.progress.last_output) <= 200
    return fold.report(ContainerEnd(exit_code=0))


@given(st.lists(any_line, max_size=8), st.binary(max_size=20), st.lists(st.integers(0, 2000), max_size=12))
@settings(max_examples=300, deadline=None)
def test_any_chunking_of_any_bytes_gives_the_same_report(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    whole = b"".join(line + b"\n" for line in lines) + rest
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    chunks = [whole[start:end] for start, end in pairwise(edges)]
    report = report_of(chunks)
    assert report == report_of([whole])
    assert report == Report.model_validate_json(report.model_dump_json())
    assert report.model_dump_json().encode()


@given(st.lists(any_line, max_size=6), st.sampled_from([None, 0, 1, 2, 137, 255]))
@settings(max_examples=300, deadline=None)
def test_odd_lines_never_raise_and_never_pass_for_success(lines: list[bytes], code: int | None) -> None:
    fold = Fold("ses_1")
    for line in lines:
        fold.add(file_line(line))
        fold.add(file_line(line, "stderr"))
    report = fold.report(ContainerEnd(exit_code=code))
    assert report.failure is not None or any(b"step_finish" in line for line in lines)
    assert report.failure is not None or code in {0, 1}


@given(st.binary(max_size=400), st.integers(1, 50), st.lists(st.integers(1, 60), max_size=20))
def test_the_splitter_cuts_at_lf_only_and_keeps_no_more_than_its_limit(
    whole: bytes, limit: int, sizes: list[int]
) -> None:
    splitter, found, start = LineSplitter("stderr", limit), list[Line](), 0
    for size in [*sizes, len(whole)]:
        found += splitter.feed(whole[start : start + size])
        start += size
    found += splitter.finish()
    *ended, last = whole.split(b"\n")
    expected = [file_line(line[:limit], "stderr") for line in ended]
    if last:
        expected.append(file_line(last[:limit], "stderr", terminated=False))
    assert found == expected


def test_the_two_decoders_read_the_same_from_a_plain_line() -> None:
    typed = msgspec.json.Decoder(Event).decode
    for capture in ALL:
        for line in capture.stdout.split(b"\n")[:20]:
            if not line.startswith(b"{") or b"\\ud83d and" in line:
                continue
            fast, slow = typed(line), decode(b"\x1b[0m" + line)
            assert slow is not None
            assert (fast.type, fast.session_id, fast.error) == (slow.type, slow.session_id, slow.error)
            if fast.part is not None and slow.part is not None:
                assert fast.part.tokens == slow.part.tokens
                assert (fast.part.id, fast.part.text, fast.part.cost) == (slow.part.id, slow.part.text, slow.part.cost)


def test_numbers_follow_javascript() -> None:
    for tokens in (b'{"input":true}', b'{"input":"7"}', b'{"input":null}', b'{"input":NaN}', b'{"input":1e999}', b"[]"):
        fold = Fold()
        fold.add(file_line(STEP % tokens))
        assert fold.progress.steps == 1
        assert fold.progress.usage.input_tokens == 0
    fold = Fold()
    fold.add(file_line(STEP % b'{"input":7.0,"output":-3,"reasoning":"x","cache":{"read":1e300,"write":2}}'))
    usage = fold.progress.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_write_tokens) == (7, 0, 2)
    assert usage.cached_input_tokens == 2**53 - 1


def test_crlf_bom_ansi_and_invalid_utf8_do_no_harm() -> None:
    line = b'{"type":"text","sessionID":"ses_1","part":{"messageID":"m","text":"caf\xe9 \\u0000 ok"}}'
    for raw in (line, line + b"\r", b"\xef\xbb\xbf" + line, b"\x1b[0m" + line + b"\x1b[0m"):
        fold = Fold()
        fold.add(file_line(raw))
        assert fold.report(ContainerEnd(exit_code=0)).summary == "caf� � ok"


def test_what_is_no_event_is_counted_and_kept_out() -> None:
    fold = Fold()
    for raw in (b"warning: x", b"[1,2]", b'"text"', b"null", b"{}", b'{"type":7}', b"[" * 100_000, b'{"a":' * 5000):
        fold.add(file_line(raw))
    fold.add(file_line(b""))
    fold.add(file_line(b" \r"))
    report = fold.report(ContainerEnd(exit_code=1))
    assert report.events == 0
    assert report.unparsed_lines == 8


def test_an_unknown_event_is_counted_and_changes_nothing() -> None:
    fold = Fold()
    fold.add(file_line(b'{"type":"done","reason":"idle","rejected":[{"deep":[[[]]]}]}'))
    assert fold.report(ContainerEnd(exit_code=0)).events == 1
    assert fold.progress.steps == 0


def test_a_line_of_five_megabytes_is_read_whole() -> None:
    big = b"x" * 5_000_000
    tool = b'{"type":"tool_use","part":{"callID":"c","tool":"bash","state":{"status":"completed","output":"%s"}}}'
    text = b'{"type":"text","part":{"messageID":"m","text":"%s"}}'
    report = fold_chunks([tool % big + b"\n", text % big + b"\n", STEP % b'{"output":3}' + b"\n"]).report(
        ContainerEnd(exit_code=0)
    )
    assert report.failure is None
    assert report.tool_calls == 1
    assert len(report.summary) == 16_000


@pytest.mark.parametrize(("size", "count"), [(1000, 2000), (1, 20_000), (16_000, 2)])
def test_a_message_of_many_texts_is_kept_no_further_than_its_summary_needs(size: int, count: int) -> None:
    text = b'{"type":"text","sessionID":"ses_1","part":{"messageID":"m","text":"%s"}}\n' % (b"x" * size)
    fold = fold_chunks([text] * count)
    summary = fold.report(ContainerEnd(exit_code=0)).summary
    assert 15_990 < len(summary) <= 16_000
    assert summary.endswith("x…")
    assert deep_size(fold) < 500_000


def test_a_big_odd_line_is_not_built_as_a_whole() -> None:
    """Arguments of a tool call may hold millions of small objects, next to half an emoji."""
    small = b"{}," * 1_000_000
    line = b'{"type":"tool_use","sessionID":"ses_1","part":{"callID":%s,"state":{"status":"error","error":"no \\ud83d",'
    line += b'"input":[' + small + b"0]}}}"
    for call in (b'"c"', b"7"):
        gc.collect()
        tracemalloc.start()
        event = decode(line % call) or decode_beginning(line % call)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert event is not None
        assert (event.type, event.session_id) == ("tool_use", "ses_1")
        assert most < 8 * len(line)


def test_escapes_of_whole_characters_survive_next_to_lone_surrogates() -> None:
    raw = rb'{"type":"text","part":{"text":"\ud83d\ude00 \ud83d \\ud83d \ude00 \n \uD83D\uDE00 \uDBFF"}}'
    event = decode(raw)
    assert event is not None
    assert event.part is not None
    assert event.part.text == "😀 � \\ud83d � \n 😀 �"


def test_a_line_over_the_limit_is_cut_counted_and_never_mistaken() -> None:
    long = b'{"type":"tool_use","sessionID":"ses_1","part":{"callID":"c","output":"' + b"x" * LINE_LIMIT + b'"}}\n'
    report = fold_chunks([long + STEP % b'{"output":1}' + b"\n"]).report(ContainerEnd(exit_code=0))
    assert report.session_id == "ses_1"
    assert report.tool_calls == 1
    assert report.events == 2
    assert "1 over-long line(s) were cut; usage and text in them are not counted" in report.warnings


@pytest.mark.slow
def test_a_million_lines_fit_into_bounded_memory() -> None:
    """Every line differs: other ids, messages, calls and errors, and stray text between them."""
    template = (
        b'{"type":"step_start","sessionID":"ses_1","part":{"messageID":"m%d"}}\n'
        b'{"type":"text","sessionID":"ses_%d","part":{"messageID":"lost%d","text":"word"}}\n'
        b'{"type":"tool_use","part":{"callID":"c%d","tool":"t","state":{"status":"error","error":"no"}}}\n'
        b'{"type":"step_finish","part":{"id":"p%d","messageID":"m%d","cost":0.1,"tokens":{"input":1,"output":1}}}\n'
        b'{"type":"error","error":{"name":"N","data":{"message":"%d"}}}\n'
        b"! permission requested: bash (%d); auto-rejecting\n"
        b"a warning of some plugin, number %d\n"
    )
    fold, splitter, steps = Fold("ses_resumed"), LineSplitter(), 145_000
    for number in range(steps):
        for line in splitter.feed(template % ((number,) * 9)):
            fold.add(line)
    report = fold.report(ContainerEnd(exit_code=1))
    assert report.steps == report.tool_calls == steps
    assert report.unparsed_lines == 2 * steps
    assert report.events == 5 * steps
    assert str(report.cost_usd) == "14500.0"
    assert len(report.model_dump_json()) < 100_000
    assert deep_size(fold) < 3_000_000


def deep_size(root: object) -> int:
    """Bytes of everything reachable from `root`, apart from classes, functions and modules."""
    shared = (type, type(deep_size), type(gc))
    seen, todo = dict[int, object](), [root]
    while todo:
        found = todo.pop()
        if id(found) not in seen and not isinstance(found, shared):
            seen[id(found)] = found
            todo += gc.get_referents(found)
    return sum(sys.getsizeof(found) for found in seen.values())


def test_text_for_people_has_no_escape_codes() -> None:
    assert plain_text(b"\x1b[91m\x1b[1mError: \x1b[0mSession not found\r") == "Error: Session not found"
    assert printable("a\x1b]0;title\x07b\x00c\x9bd\ud800", 50) == "ab�cd�"
    assert printable("x" * 100, 10) == "x" * 9 + "…"
