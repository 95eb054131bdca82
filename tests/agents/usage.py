"""Where each agent says what its model used: in the protocol, or in a file of its own."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from dev_stack.scripted_model import Usage

Json = dict[str, Any]


def spent(name: str, results: Iterable[Json], updates: Iterable[Json], home: Path) -> Usage:
    """What the turns with these results and updates used, all together.

    What an agent does not tell is 0: Claude has no count of reasoning, Gemini none of the cache either, and its output
    is without reasoning.
    """
    return _total(_READERS[name](list(results), list(updates), home))


def _claude(results: list[Json], _updates: list[Json], _home: Path) -> Iterator[Usage]:
    for result in results:
        used = result["usage"]
        prompt = used["inputTokens"] + used["cachedReadTokens"] + used["cachedWriteTokens"]
        yield Usage(prompt, used["outputTokens"], used["cachedReadTokens"])


def _gemini(results: list[Json], _updates: list[Json], _home: Path) -> Iterator[Usage]:
    for result in results:
        used = result["_meta"]["quota"]["token_count"]
        yield Usage(used["input_tokens"], used["output_tokens"])


def _qwen(_results: list[Json], updates: list[Json], _home: Path) -> Iterator[Usage]:
    for update in updates:
        if used := (update.get("_meta") or {}).get("usage"):
            yield Usage(used["inputTokens"], used["outputTokens"], used["cachedReadTokens"], used["thoughtTokens"])


def _codex(_results: list[Json], _updates: list[Json], home: Path) -> Iterator[Usage]:
    for path in (home / ".codex" / "sessions").rglob("rollout-*.jsonl"):
        for line in _lines(path):
            if line["payload"].get("type") == "token_count" and line["payload"]["info"]:
                used = line["payload"]["info"]["last_token_usage"]
                yield Usage(
                    used["input_tokens"],
                    used["output_tokens"],
                    used["cached_input_tokens"],
                    used["reasoning_output_tokens"],
                )


def _pi(_results: list[Json], _updates: list[Json], home: Path) -> Iterator[Usage]:
    for path in (home / ".pi" / "agent" / "sessions").rglob("*.jsonl"):
        for line in _lines(path):
            if used := line.get("message", {}).get("usage"):
                prompt = used["input"] + used["cacheRead"] + used["cacheWrite"]
                yield Usage(prompt, used["output"], used["cacheRead"], used.get("reasoning", 0))


def _lines(path: Path) -> Iterator[Json]:
    return (json.loads(line) for line in path.read_text().splitlines())


def _total(parts: Iterable[Usage]) -> Usage:
    total = Usage(0, 0)
    for each in parts:
        total = total.plus(each)
    return total


_READERS: Final[dict[str, Callable[[list[Json], list[Json], Path], Iterator[Usage]]]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "qwen": _qwen,
    "pi": _pi,
}
