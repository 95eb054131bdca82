"""The scenes: plain answers, nasty text, tools, provider errors, broken and slow streams, scripts from the prompt."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from local.scripted_model.steps import Ask, Step, Tool, Usage, openai_error, text_of

Answer = Callable[[Ask], Step]
_ALWAYS: Final = 1_000_000


@dataclass(frozen=True)
class Scenario:
    """A scene: what it shows, in one sentence, and how it answers."""

    about: str
    answer: Answer


SCENARIOS: Final[dict[str, Scenario]] = {}


def plan(ask: Ask, *steps: Step) -> Step:
    """The step of a fixed list that this request stands at; the last one repeats."""
    return steps[min(ask.step, len(steps) - 1)]


def _scene(name: str, about: str) -> Callable[[Answer], Answer]:
    """Register a scene that depends on the request."""

    def register(answer: Answer) -> Answer:
        SCENARIOS[name] = Scenario(about, answer)
        return answer

    return register


def _fixed(name: str, about: str, *steps: Step) -> None:
    """Register a scene of fixed steps."""
    SCENARIOS[name] = Scenario(about, lambda ask: plan(ask, *steps))


def _bash(command: str, description: str) -> Tool:
    return Tool("bash", {"command": command, "description": description})


def _repeated(line: str, size: int) -> str:
    return (line * (size // len(line) + 1))[:size]


# plain answers

_fixed("text", "A short text answer.", Step(text="Hello from the fake model."))
_fixed(
    "reasoning",
    "Reasoning deltas, then text; reasoning tokens in the usage.",
    Step(
        reasoning="First I think about it. Then I think a bit more.",
        text="The answer is 42.",
        usage=Usage(prompt=200, completion=60, reasoning=45),
    ),
)
_fixed("empty", 'No content at all, finish reason "stop".', Step(usage=Usage(prompt=50, completion=0)))
_fixed(
    "length",
    'Text cut off by the output limit: finish reason "length".',
    Step(text="This answer stops in the mid", finish="length"),
)
_fixed(
    "content-filter",
    'Some text, then finish reason "content_filter".',
    Step(text="I was about to say", finish="content_filter"),
)
_fixed(
    "usage-cached",
    "Usage with cached prompt tokens and reasoning tokens.",
    Step(
        text="Most of the prompt came from the cache.",
        usage=Usage(prompt=12000, completion=350, cached=9000, reasoning=128),
    ),
)
_fixed(
    "no-usage",
    "Text, but the provider never reports usage.",
    Step(text="Nobody counted these tokens.", usage=None),
)


@_scene("echo", "Answers with JSON: how many messages it was sent and every user text.")
def _echo(ask: Ask) -> Step:
    """For checks of prompt fidelity and of resumed history."""
    seen = {
        "messages": len(ask.messages),
        "roles": [message.get("role") for message in ask.messages],
        "user": ask.user_texts(),
    }
    return Step(text=json.dumps(seen, ensure_ascii=False))


# nasty text

WEIRD: Final = (
    "CRLF line\r\nlone CR\rtab\there\n"
    "emoji \U0001f600 family \U0001f468\u200d\U0001f469\u200d\U0001f467 flag \U0001f1e9\U0001f1ea\n"
    "RTL \u202eabc\u202c combining e\u0301 wide \uff21\n"
    "line sep [\u2028] para sep [\u2029] next line [\u0085] vt [\x0b] ff [\x0c]\n"
    "nul [\x00] esc [\x1b[31mred\x1b[0m] bell [\x07] del [\x7f] bom [\ufeff]\n"
    'json-like: {"type":"error","sessionID":"ses_fake"}\n'
    '{"type":"step_finish","part":{"reason":"stop"}}\n'
    'quote " backslash \\ slash / </script> \\u0041 \\n\n'
    "nonchar [\uffff] private [\ue000] astral \U0010fffd"
)

_fixed("text-weird", "Emoji, CRLF, control characters, U+2028, NUL, JSON look-alike lines.", Step(text=WEIRD, chunk=7))
_fixed(
    "text-surrogate",
    "A lone UTF-16 surrogate in the text (legal as a JSON escape only).",
    Step(text="half an emoji: \ud83d and \ude00 alone", chunk=1000),
)


@_scene("text-big", "A very long text, by default 300000 characters (`text-big:N`).")
def _text_big(ask: Ask) -> Step:
    size = ask.number(0, 300_000)
    line = '0123456789 \u00e4\u00f6\u00fc \U0001f680 \u65e5\u672c\u8a9e "quoted" \\ tab\t|\r\n'
    usage = Usage(prompt=100, completion=min(size // 4, 8000))
    return Step(text=_repeated(line, size), chunk=4096, usage=usage)


# tools

_fixed(
    "tool-bash",
    "One bash call, then text.",
    Step(tools=(_bash("echo hello-from-bash", "print a greeting"),)),
    Step(text="The command printed its greeting."),
)
_fixed(
    "tool-text-bash",
    "Reasoning and text before a bash call in the same step, then text.",
    Step(
        reasoning="I should run a command.",
        text="I will run a command first.",
        tools=(_bash("printf 'out\\n'; printf 'err\\n' >&2", "write both streams"),),
    ),
    Step(text="Both streams were captured."),
)
_fixed(
    "tool-read",
    "Reads README.md of the working directory (relative path), then text.",
    Step(tools=(Tool("read", {"filePath": "README.md"}),)),
    Step(text="I have read the file."),
)
_fixed(
    "tool-write",
    "Writes fake-output.txt in the working directory, then text.",
    Step(tools=(Tool("write", {"filePath": "fake-output.txt", "content": "line one\nline two\n"}),)),
    Step(text="The file is written."),
)
_fixed(
    "tool-edit",
    "Writes fake-edit.txt, reads it, edits it, then text (four steps).",
    Step(tools=(Tool("write", {"filePath": "fake-edit.txt", "content": "alpha\nbeta\ngamma\n"}),)),
    Step(tools=(Tool("read", {"filePath": "fake-edit.txt"}),)),
    Step(tools=(Tool("edit", {"filePath": "fake-edit.txt", "oldString": "beta", "newString": "BETA"}),)),
    Step(text="beta became BETA."),
)
_fixed(
    "multi-step",
    "Three parallel tools, then two parallel tools, then text.",
    Step(
        text="Three things at once.",
        tools=(
            _bash("sleep 1; echo slow", "slow command"),
            _bash("echo fast", "fast command"),
            Tool("write", {"filePath": "multi.txt", "content": "one\n"}),
        ),
        usage=Usage(prompt=1000, completion=90, cached=0),
    ),
    Step(
        tools=(Tool("read", {"filePath": "multi.txt"}), Tool("glob", {"pattern": "*.txt"})),
        usage=Usage(prompt=1300, completion=40, cached=1000),
    ),
    Step(text="All done.", usage=Usage(prompt=1500, completion=10, cached=1300)),
)
_fixed(
    "tool-fail",
    "A command that exits 3, a read of a missing file, a bad edit, then text.",
    Step(tools=(_bash("echo oops >&2; exit 3", "a failing command"),)),
    Step(tools=(Tool("read", {"filePath": "does-not-exist.txt"}),)),
    Step(tools=(Tool("edit", {"filePath": "does-not-exist.txt", "oldString": "a", "newString": "b"}),)),
    Step(text="Three things failed and I carried on."),
)
_fixed(
    "tool-invalid",
    "An unknown tool, broken JSON arguments, missing arguments, then text.",
    Step(tools=(Tool("no_such_tool", {"x": 1}),)),
    Step(tools=(Tool("bash", raw='{"command": "echo trunca'),)),
    Step(tools=(Tool("read", {}),)),
    Step(text="None of these calls were valid."),
)
_fixed(
    "tool-weird-output",
    "A command printing invalid UTF-8, NUL, ANSI colours and CR, then text.",
    Step(
        tools=(
            _bash(
                "printf 'bad utf8 \\377\\376 nul \\000 esc \\033[31mred\\033[0m cr\\rlf\\r\\n"
                "euro \\342\\202\\254 cut \\342\\202'",
                "print odd bytes",
            ),
        )
    ),
    Step(text="Odd bytes were printed."),
)
_fixed(
    "tool-env",
    "Prints the tool's environment: shows which secrets reach the event log.",
    Step(tools=(_bash("env | sort", "show the environment"),)),
    Step(text="That is the environment."),
)
_fixed(
    "tool-outside",
    "Reads outside the project (/etc/hostname), then text.",
    Step(tools=(Tool("read", {"filePath": "/etc/hostname"}),)),
    Step(text="I looked outside the project."),
)
_fixed(
    "tool-todo",
    "Writes a to-do list, then text.",
    Step(
        tools=(
            Tool(
                "todowrite",
                {
                    "todos": [
                        {"content": "first thing", "status": "in_progress", "priority": "high"},
                        {"content": "second thing", "status": "pending", "priority": "low"},
                    ]
                },
            ),
        )
    ),
    Step(text="List written."),
)
_fixed(
    "tool-question",
    "Asks the user a question (there is no user in a headless run), then text.",
    Step(
        tools=(
            Tool(
                "question",
                {
                    "questions": [
                        {
                            "question": "Which colour?",
                            "header": "Colour",
                            "options": [
                                {"label": "Red", "description": "the red one"},
                                {"label": "Blue", "description": "the blue one"},
                            ],
                        }
                    ]
                },
            ),
        )
    ),
    Step(text="Nobody answered."),
)


@_scene("tool-big-output", "A command that prints about 200 KB (`tool-big-output:BYTES`), then text.")
def _tool_big_output(ask: Ask) -> Step:
    command = f"yes '{' '.join(['0123456789'] * 5)}' | head -c {ask.number(0, 200_000)}"
    return plan(ask, Step(tools=(_bash(command, "print a lot"),)), Step(text="That was a lot of output."))


@_scene("tool-big-input", "A write call with 200 KB of content (`tool-big-input:CHARS`), then text.")
def _tool_big_input(ask: Ask) -> Step:
    line = 'r\u00e9sum\u00e9 \U0001f4c4 0123456789 abcdefghijklmnopqrstuvwxyz "x"\n'
    write = Tool("write", {"filePath": "big.txt", "content": _repeated(line, ask.number(0, 200_000))})
    return plan(ask, Step(tools=(write,), chunk=4096), Step(text="The big file is written."))


@_scene("tool-sleep", "A bash call that sleeps N seconds (`tool-sleep:N`, default 30), then text.")
def _tool_sleep(ask: Ask) -> Step:
    sleep = _bash(f"echo before; sleep {ask.arg(0, '30')}; echo after", "sleep a while")
    return plan(ask, Step(text="Going to sleep.", tools=(sleep,)), Step(text="I am awake."))


@_scene("tool-webfetch", "Fetches a URL (default: a refused port of this machine), then text.")
def _tool_webfetch(ask: Ask) -> Step:
    fetch = Tool("webfetch", {"url": ":".join(ask.args) or "http://127.0.0.1:9/", "format": "text"})
    return plan(ask, Step(tools=(fetch,)), Step(text="I tried to fetch a page."))


@_scene("subagent", "Starts a sub-agent with the task tool (it runs bash once), then text.")
def _subagent(ask: Ask) -> Step:
    if any("SUBAGENT-PROMPT" in text for text in ask.user_texts()[-1:]):
        inside = _bash("echo from-the-subagent", "inside the sub-agent")
        return plan(ask, Step(tools=(inside,)), Step(text="Sub-agent result: 7"))
    task = {
        "description": "small job",
        "prompt": "SUBAGENT-PROMPT: run one command and report.",
        "subagent_type": ask.arg(0, "general"),
    }
    return plan(ask, Step(tools=(Tool("task", task),)), Step(text="The sub-agent reported 7."))


@_scene("doom-loop", "The same bash call for N steps (`doom-loop:N`, default 8), then text.")
def _doom_loop(ask: Ask) -> Step:
    if ask.step < ask.number(0, 8):
        return Step(tools=(_bash("echo again", "the same again"),))
    return Step(text="I got out of the loop.")


# provider errors

ERRORS: Final[dict[int, tuple[str, str, str | None]]] = {
    400: ("Invalid request: the fake model dislikes it.", "invalid_request_error", None),
    401: ("Incorrect API key provided.", "invalid_request_error", "invalid_api_key"),
    402: ("Payment required.", "insufficient_quota", "insufficient_quota"),
    403: ("You may not use this model.", "permission_error", "forbidden"),
    404: ("The model does not exist.", "invalid_request_error", "model_not_found"),
    413: ("Request too large.", "invalid_request_error", None),
    429: ("Rate limit reached for requests.", "requests", "rate_limit_exceeded"),
    500: ("The server had an error.", "server_error", None),
    503: ("The engine is currently overloaded.", "server_error", "overloaded"),
}


def http_error(status: int, retry_after: str | None = None) -> Step:
    """An HTTP error with the body a provider would send."""
    message, kind, code = ERRORS.get(status, (f"Error {status}.", "server_error", None))
    headers = {"retry-after": retry_after} if retry_after is not None else {}
    return Step(status=status, error_body=openai_error(message, kind, code), headers=headers)


@_scene("error", "Always an HTTP error: `error:STATUS[:RETRY_AFTER]`, default 500.")
def _error(ask: Ask) -> Step:
    return http_error(ask.number(0, 500), ask.args[1] if len(ask.args) > 1 else None)


@_scene("flaky", "`flaky:STATUS:N[:RETRY_AFTER]`: N failures (default 429, 1), then text.")
def _flaky(ask: Ask) -> Step:
    if ask.attempt <= ask.number(1, 1):
        return http_error(ask.number(0, 429), ask.arg(2, "1"))
    return Step(text=f"It worked at attempt {ask.attempt}.")


@_scene("error-html", "A gateway's HTML page with a status: `error-html:STATUS`, default 502.")
def _error_html(ask: Ask) -> Step:
    status = ask.number(0, 502)
    page = f"<!DOCTYPE html><html><body><h1>{status} gateway</h1></body></html>"
    return Step(status=status, error_body=page, content_type="text/html")


@_scene("error-after-tool", "A bash call first, then an HTTP error (`error-after-tool:STATUS`, 400).")
def _error_after_tool(ask: Ask) -> Step:
    work = Step(text="Working.", tools=(_bash("echo partial-work", "do some work"),))
    return plan(ask, work, http_error(ask.number(0, 400)))


@_scene("context-overflow", "Context window exceeded; `context-overflow:N` only N times, then text.")
def _context_overflow(ask: Ask) -> Step:
    over = ask.attempt <= ask.number(0, _ALWAYS)
    if not over or (ask.args and _summarised(ask)):
        return Step(text="Now it fits.")
    body = openai_error(
        "This model's maximum context length is 8192 tokens. However, your messages "
        "resulted in 9000 tokens. Please reduce the length of the messages.",
        "invalid_request_error",
        "context_length_exceeded",
    )
    return Step(status=400, error_body=body)


@_scene("usage-overflow", "The first step reports far more tokens than the window holds (compaction).")
def _usage_overflow(ask: Ask) -> Step:
    if _summarised(ask):
        return Step(text="I go on with the summary.")
    big = _bash("echo big-step", "a step")
    usage = Usage(prompt=500_000, completion=10)
    return plan(ask, Step(text="Using a lot of context.", tools=(big,), usage=usage), Step(text="Not compacted."))


def _summarised(ask: Ask) -> bool:
    return any("FAKE-SUMMARY" in text_of(message) for message in ask.messages)


# broken and slow streams

_fixed(
    "stream-error",
    "An error object in the middle of a 200 stream.",
    Step(text="This stream will not end well. " * 4, chunk=16, error_after=3),
)
_fixed(
    "stream-garbage",
    "A chunk that is not JSON in the middle of the stream.",
    Step(text="This stream holds a broken chunk. " * 4, chunk=16, garbage_after=3),
)


@_scene("stream-no-finish", "No finish reason for N steps (`stream-no-finish:N`, default always), then text.")
def _stream_no_finish(ask: Ask) -> Step:
    """OpenCode 1.18 takes this as "unknown" and asks again, without a limit."""
    if ask.step < ask.number(0, _ALWAYS):
        return Step(text="There is no finish chunk.", send_finish=False, send_done=False)
    return Step(text="This is the end.")


@_scene("drop", "The connection drops in mid-stream; `drop:N` only N times, then text.")
def _drop(ask: Ask) -> Step:
    if ask.attempt <= ask.number(0, _ALWAYS):
        return Step(text="You will never read the end of this. " * 8, chunk=16, drop_after=5)
    return Step(text=f"It worked at attempt {ask.attempt}.")


@_scene("drop-tool", "Drops within a tool call's arguments; `drop-tool:N` only N times.")
def _drop_tool(ask: Ask) -> Step:
    if ask.step == 0 and ask.attempt <= ask.number(0, 1):
        tool = _bash("echo " + "x" * 400, "long arguments")
        return Step(text="Calling a tool.", tools=(tool,), chunk=16, drop_after=8)
    return plan(ask, Step(tools=(_bash("echo recovered", "after the drop"),)), Step(text="Recovered."))


@_scene("hang", "Nothing at all for N seconds (`hang:N`, default 60), then text.")
def _hang(ask: Ask) -> Step:
    return Step(text="Sorry for the wait.", delay=float(ask.arg(0, "60")))


@_scene("hang-stream", "Some text, then silence for N seconds per chunk (`hang-stream:N`, 60).")
def _hang_stream(ask: Ask) -> Step:
    return Step(text="Beginning... and end.", chunk=12, gap=float(ask.arg(0, "60")))


@_scene("slow", "A steady stream: `slow:CHUNKS:GAP` (default 20 chunks, 0.5 s apart).")
def _slow(ask: Ask) -> Step:
    text = "".join(f"chunk {number:04d}\n" for number in range(ask.number(0, 20)))
    return Step(text=text, chunk=11, gap=float(ask.arg(1, "0.5")))


@_scene("slow-steps", "`slow-steps:N:SECONDS`: N bash steps, each sleeping (default 10, 1 s).")
def _slow_steps(ask: Ask) -> Step:
    count, number = ask.number(0, 10), ask.step + 1
    if number > count:
        return Step(text="All steps are done.")
    sleep = _bash(f"echo step-{number}; sleep {ask.arg(1, '1')}", f"step {number}")
    return Step(text=f"Step {number} of {count}.", tools=(sleep,))


# scripts from the prompt

_SCRIPT: Final = re.compile(r"<<<fake-llm\s*(\{.*?\})\s*fake-llm>>>", re.DOTALL)


@_scene("script", "The steps are written in the prompt; see the package's docstring.")
def _script(ask: Ask) -> Step:
    for text in reversed(ask.user_texts()):
        if found := _SCRIPT.search(text):
            steps = [Step.from_json(raw) for raw in json.loads(found.group(1))["steps"]]
            return steps[ask.step] if ask.step < len(steps) else Step(text="script finished")
    return Step(status=400, error_body=openai_error("no script in the prompt", "fake"))


# what agents ask on the side

_SIDE: Final[tuple[tuple[str, re.Pattern[str], str], ...]] = (
    ("title", re.compile(r"you are a title generator", re.IGNORECASE), "Fake session title"),
    (
        "summary",
        re.compile(r"context summarization agent|summarize what was done in this conv", re.IGNORECASE),
        "FAKE-SUMMARY: the user asked for something and the agent was working on it.",
    ),
)


def side_request(model: str, messages: list[dict[str, Any]]) -> tuple[str, Step] | None:
    """The name and answer of a request for a title or a summary, known by its model or system prompt; else None."""
    system = "\n".join(text_of(message) for message in messages[:2] if message.get("role") in ("system", "developer"))
    for name, pattern, answer in _SIDE:
        if model == f"aux/{name}" or pattern.search(system):
            return name, Step(text=answer, usage=Usage(prompt=30, completion=8))
    return None
