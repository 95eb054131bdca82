"""Whatever a caller seals or an agent writes: only documented errors, bounded memory, and the event loop stays free.

How long it is blocked at most is measured in `bench/loop.py`. Hostile requests to the API proxy are in
`tests/pod/test_api_proxy.py`.
"""

import copy
import json
import os
import re
import tracemalloc
from collections.abc import Iterator
from html.parser import HTMLParser
from io import StringIO
from random import Random
from typing import Any, Final

import msgspec
import pytest
from rich.console import Console

from agent_runs.cli.display import TextDisplay
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.messages import CreateJob, PodProfile, PromptBundle
from agent_runs.contracts.outcome import ContainerEnd
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.attempt_plan import attempt_plan
from agent_runs.job.redactions import WorkerValues
from agent_runs.logs.frames import FrameReader
from agent_runs.logs.log_resume import LogReader
from agent_runs.paperclip.preparation import prepare
from agent_runs.paperclip.redaction import Redaction
from agent_runs.transcript.fold import Fold
from agent_runs.transcript.store import Line
from agent_runs.web.paperclip_log import CALL_BYTES, FORMATS, calls
from agent_runs.web.render import Templates, page_entries
from tests.logs.one_connection import fed
from tests.paperclip.contexts import NAMES, captured, minimal, with_value
from tests.runs.test_restarts import peak_memory
from tests.support.cases import case
from tests.support.lines import file_line
from tests.web.parts import NOON, line

MIB: Final = 1024 * 1024
QUARTER: Final = MIB // 4
PEAK: Final = 12
"""Times its own size that a hostile line may take in memory while it is read."""
MESSAGE_LIMIT: Final = 20_000
HOSTILE: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.5, 10**30, 1e308, float("inf"), float("nan"), "", " ", "\0", "\x1b[31m", "\ud800"),
    *(
        "[undefined]",
        "../../etc/passwd",
        "-x",
        "--",
        "a" * 70_000,
        "ü" * 300,
        "x\ny: z",
        "{{7*7}}",
        "${HOME}",
        "\u202e",
    ),
    *("http://ada:pw@h/?a=b", "http://[::1", "1e999", "9" * 5000, "=", "a=b,c", "[{", '{"a":', "agent/../../x", "💥"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": {"c": {}}}}, ["x"] * 300, {str(n): n for n in range(200)}),
)
"""Values that nobody expects where they are put."""


# what a caller seals


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in the value, with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from nodes(value[key])


def mutated(random: Random, context: dict[str, Any]) -> dict[str, Any]:
    """The context with some of its parts exchanged, removed, repeated, nested or of another type."""
    changed: dict[str, Any] = json.loads(json.dumps(context))
    for _ in range(random.choice((1, 1, 2, 5))):
        places = list(nodes(changed))
        if not places:
            break
        parent, key = random.choice(places)
        other, other_key = random.choice(places)
        match random.randrange(6):
            case 0 | 1:
                parent[key] = copy.deepcopy(random.choice(HOSTILE))
            case 2:
                del parent[key]
            case 3:
                parent[key] = copy.deepcopy(other[other_key])
            case 4:
                for _ in range(random.choice((1, 5, 80))):
                    parent[key] = [parent[key]] if random.random() < 0.5 else {str(key): parent[key]}
            case _:
                if isinstance(parent, dict):
                    parent[str(random.choice(HOSTILE))[:300]] = copy.deepcopy(random.choice(HOSTILE))
                else:
                    parent.append(copy.deepcopy(random.choice(HOSTILE)))
    return changed


def planned(context: dict[str, Any]) -> str | None:
    """Prepares a request and plans its Job as a run does; the message of what is refused."""
    try:
        prepared = prepare(context)
        request = prepared.request
        WorkerValues().redaction(prepared.secrets)
        attempt = AttemptKey(run=request.key, attempt=1)
        input = CreateJob(
            attempt=attempt,
            request=request,
            profile=PodProfile(namespace="agents", image="agent:1", data_claim="data"),
            prompt=PromptBundle(namespace="agents", secret_name=attempt.prompt_secret_name, sha256="0" * 64, size=1),
            session=request.runtime.session_params,
        )
        plan = attempt_plan(input, prepared.secrets, {}, {}, AgentPodSettings())
        json.dumps(plan.job, allow_nan=False).encode()
        assert request.model_validate_json(request.model_dump_json()) == request
    except InvalidRequest as refused:
        return refused.message
    return None


@pytest.mark.slow
def test_2000_mutations_of_real_requests_give_a_job_or_a_named_refusal() -> None:
    random = Random(20261123)
    contexts = [captured(name) for name in NAMES]
    answers = [planned(mutated(random, random.choice(contexts))) for _ in range(2000)]
    refusals = [answer for answer in answers if answer is not None]
    assert 200 < len(refusals) < 1800
    assert all(refusals)
    assert max(map(len, refusals)) < MESSAGE_LIMIT


def test_a_scratch_folder_of_any_kind_is_no_crash() -> None:
    context = with_value(minimal(), "config.env", {"TMPDIR": "/tmp/x"})
    folders: list[object] = [{}, [], ["a"], 1, None]
    for folder in folders:
        with case(folder):
            prepared = prepare(with_value(context, "context.paperclipScratch", {"dir": folder}))
            assert prepared.secrets.env == {"TMPDIR": "/tmp/x"}


# what an agent writes

SECRETS: Final = (("GITHUB_TOKEN", "ghp_0123456789abcdef"), ("PASSWORD", 'pass"word/+ü\\1234'))
REDACTION: Final = Redaction.of(SECRETS)
STAMP: Final = b"2026-11-21T10:00:00.123456789Z "
TOKENS: Final = (
    *(
        b"\n",
        b"\r",
        b"\0",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\xe2\x80\xa8",
        "\u202e".encode(),
        b"\x1b[31m",
        b"\x1b]8;;x\x07",
    ),
    *(b"\x1b", b"\x9b31m", b"<script>alert(1)</script>", b"<img src=x onerror=alert(1)>", b"[x](javascript:alert(1))"),
    *(
        b"&#60;script&#62;",
        b"{{7*7}}",
        b"{%",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[" * 2000,
        b'{"a":' * 300,
        b"]" * 50,
        b"1e999",
    ),
    *(b"9" * 5000, b"NaN", b"\\ud83d", b"\\u0000", b"null", b"```", b"|-|\n|-|", b"*_" * 50, b"> " * 40, b"[[secret:"),
    *(b"[[secret:GITHUB_TOKEN]]", b"[[secret:GITHUB_TOKEN:0:1-5]]", b"ghp_0123456789abcdef", b"ghp_01234567", b"Z2hw"),
    *(
        b"failed to watch file",
        b"rpc error: code = x",
        b"data: {}\n\nevent: end",
        b"event: end\ndata: null\n\n",
        b"x" * 9000,
    ),
    *(
        b'{"type":"text","sessionID":"ses_1","part":{"text":"',
        b'{"type":"error","error":',
        b'{"type":"tool_use","part":',
    ),
    *(
        b'{"type":"step_finish","part":{"reason":"stop","tokens":{"input":-1e300}}}',
        b'"state":{"output":',
        b'"}}',
        b": ",
    ),
)
"""What means something to one of the readers, in any order."""


def hostile_feed(random: Random) -> bytes:
    """The log of a container: frames of the runner, cut or forged ones, text of a kubelet, or any bytes."""
    out = bytearray()
    for number in range(1, random.randrange(2, 9)):
        payload = b"".join(
            random.choice(TOKENS) if random.random() < 0.8 else random.randbytes(random.randrange(40))
            for _ in range(random.randrange(6))
        )
        head = b"%d%s%s " % (
            random.choice((*[number] * 20, 0, number + 3, 10**17, 10**18)),
            random.choice(LETTERS),
            random.choice(MARKS),
        )
        stamp = random.choice((*[STAMP] * 9, b"", b"9999-99-99T99:99:99Z "))
        frame = (
            stamp + random.choice((*[head] * 9, b"")) + payload.replace(b"\n", b" " if random.random() < 0.9 else b"\n")
        )
        out += frame[: random.randrange(len(frame) + 1)] if random.random() < 0.1 else frame
        out += random.choice((b"\n", b"\n", b"\n", b"\r\n", b""))
    return bytes(out)


LETTERS: Final = (*[b"o"] * 6, *[b"e"] * 3, b"O", b"h", b"x", b"z")
MARKS: Final = (*[b"."] * 6, b"+", b"-", b"?")


def pieces(random: Random, data: bytes) -> Iterator[bytes]:
    """The data in pieces of any size."""
    at = 0
    while at < len(data):
        size = random.choice((1, 7, 100, 8192, 10**6))
        yield data[at : at + size]
        at += size


def lines_of(random: Random, feed: bytes) -> list[Line]:
    """The lines that both readers make of a log."""
    frames = FrameReader(timestamps=random.random() < 0.5)
    for piece in pieces(random, feed):
        frames.feed(piece)
    frames.close()
    reader = LogReader()
    reader.connect(from_start=True)
    lines = [line for piece in pieces(random, feed) for line in fed(reader, piece).lines]
    return lines + reader.disconnect(final=random.random() < 0.5).lines


class OnlyOurs(HTMLParser):
    """Collects the elements of a page, and its attributes that could do anything."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.acting: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.acting += [
            (n, v) for n, v in attrs if n.startswith("on") or (v or "").strip().lower().startswith("javascript")
        ]


ACTIVE: Final = {"script", "img", "iframe", "object", "embed", "svg", "style", "link", "form", "base", "meta"}


def test_9000_hostile_feeds_are_stored_folded_and_shown_without_effect() -> None:
    random = Random(20261123)
    fold, parser, templates = Fold("ses_other"), OnlyOurs(), Templates()
    console = Console(file=StringIO(), force_terminal=True, color_system="truecolor", width=100)
    terminal = TextDisplay(verbose=True, console=console)
    before = peak_memory(os.getpid())
    read = 0
    for number in range(9000):
        shown = []
        for one in lines_of(random, hostile_feed(random)):
            redacted = REDACTION.redact(one.data)
            assert SECRETS[0][1].encode() not in redacted
            fold.add(msgspec.structs.replace(one, data=redacted))
            shown.append(Line(one.sequence, one.stream, redacted, terminated=one.terminated, at=NOON))
        read += len(shown)
        for one_shown in shown[:2]:
            for log_format in FORMATS:
                assert all(len(call.text.encode()) < CALL_BYTES for call in calls(one_shown, log_format))
            if number % 10 == 0:
                terminal.line(1, one_shown)
        if number % 10 == 0:
            parser.feed(templates.html("transcript_entries.html", base="run", attempt=1, entries=page_entries(shown)))
    written = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO
    assert read > 9000  # so that the feeds are not refused before they are read
    assert written
    assert parser.elements
    assert parser.elements & ACTIVE == set()
    assert parser.acting == []
    assert set(re.findall(r"\x1b[^m]{0,40}m?", written)) <= OUR_STYLES
    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]", written)
    report = fold.report(ContainerEnd(exit_code=0))
    assert len(report.model_dump_json()) < 100_000
    assert SECRETS[0][1] not in report.model_dump_json()
    assert peak_memory(os.getpid()) - before < 256 * MIB


OUR_STYLES: Final = {
    f"\x1b[{style}m" for style in ("0", "1", "2", "31", "32", "33", "36", "1;31", "2;3", "1;36", "1;32")
}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            b'{"type":"error","sessionID":"ses_1","error":[' + b"[]," * QUARTER + b"[]]}", id="an error of lists"
        ),
        pytest.param(b'{"type":"text","part":{"text":[' + b"[]," * QUARTER + b"[]]}}", id="a text of lists"),
        pytest.param(b'{"type":"text","part":' + b'{"a":' * QUARTER, id="a deep object"),
        pytest.param(b'{"type":"tool_use","part":{"state":{"output":[' + b"0," * 2 * QUARTER + b"0]}}}", id="numbers"),
        pytest.param(b'\x1b[31m{"type":"text","part":{"text":"' + b"\\ud83d" * QUARTER + b'"}}', id="half characters"),
        pytest.param(b"\x1b[" * 2 * QUARTER, id="ANSI codes"),
        pytest.param(SECRETS[0][1].encode() * (QUARTER // 4), id="secrets"),
    ],
)
def test_a_large_line_takes_no_multiple_of_its_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        redacted = REDACTION.redact(data)
        fold = Fold()
        fold.add(file_line(redacted))
        shown = line(1, redacted)
        Templates().html("transcript_entries.html", base="run", attempt=1, entries=page_entries([shown]))
        assert all(len(call.text.encode()) < CALL_BYTES for form in FORMATS for call in calls(shown, form))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(redacted) <= 4 * len(data)
    assert peak < PEAK * len(data)
