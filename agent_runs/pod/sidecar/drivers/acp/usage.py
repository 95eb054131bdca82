"""The tokens and the cost of a turn, from where each agent has them: the protocol, or a file of its session.

`input` is without what was cached, and `output` without reasoning, as in OpenCode's lines; the shares do not overlap.
Sources: the versions that `mapping` names, compared with what their provider was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from agent_runs.pod.sidecar.drivers.lines import decoded, dictionary, integer, prose

MAX_ERROR = 4000


class Tokens(NamedTuple):
    """Of one step or more."""

    input: int
    output: int
    reasoning: int = 0
    read: int = 0
    write: int = 0

    def plus(self, other: Tokens) -> Tokens:
        return Tokens(*(mine + theirs for mine, theirs in zip(self, other)))

    def content(self) -> dict[str, Any]:
        """Return them as OpenCode writes them."""
        cache = {"read": self.read, "write": self.write}
        return {"input": self.input, "output": self.output, "reasoning": self.reasoning, "cache": cache}


class Used(NamedTuple):
    """What a file of a session has of the turn.

    Attributes:
        error: what the provider said, of a turn that ended with it.
    """

    tokens: Tokens | None = None
    cost: float | None = None
    error: str = ""


def of_result(source: str | None, result: dict[str, Any]) -> Tokens | None:
    """Return the tokens of the whole turn that the answer to the prompt has."""
    if source == "result_usage":
        used = dictionary(result.get("usage"))
        fresh, thought = _count(used, "inputTokens"), _count(used, "thoughtTokens")
        written, cached = max(_count(used, "outputTokens") - thought, 0), _count(used, "cachedReadTokens")
        return Tokens(fresh, written, thought, cached, _count(used, "cachedWriteTokens")) if used else None
    if source == "result_quota":
        used = dictionary(dictionary(dictionary(result.get("_meta")).get("quota")).get("token_count"))
        return Tokens(_count(used, "input_tokens"), _count(used, "output_tokens")) if used else None
    return None


def of_chunk(update: dict[str, Any]) -> Tokens | None:
    """Return the tokens of a step that a chunk has."""
    used = dictionary(dictionary(update.get("_meta")).get("usage"))
    if not used:
        return None
    whole, cached, thought = (_count(used, name) for name in ("inputTokens", "cachedReadTokens", "thoughtTokens"))
    return Tokens(max(whole - cached, 0), max(_count(used, "outputTokens") - thought, 0), thought, cached)


def cost_of(update: dict[str, Any]) -> float | None:
    """Return what an update says that the process has cost until now, in dollars."""
    cost = dictionary(update.get("cost"))
    if update.get("sessionUpdate") != "usage_update" or cost.get("currency") not in (None, "USD"):
        return None
    return _price(cost.get("amount"))


def of_file(content: bytes) -> Used:
    """Return what the end of a session's file of pi has of its last turn. Never raises."""
    found = Used()
    for entry in _entries(content):
        message = dictionary(entry.get("message"))
        if message.get("role") == "user":
            found = Used()
        elif message.get("role") == "assistant":
            found = _pi_message(found, message)
    return found


def _pi_message(found: Used, message: dict[str, Any]) -> Used:
    used = dictionary(message.get("usage"))
    thought = _count(used, "reasoning")
    tokens = Tokens(
        _count(used, "input"),
        max(_count(used, "output") - thought, 0),
        thought,
        _count(used, "cacheRead"),
        _count(used, "cacheWrite"),
    )
    price = _price(dictionary(used.get("cost")).get("total"))
    failed = prose(message.get("errorMessage"), MAX_ERROR) or "error" if message.get("stopReason") == "error" else ""
    return Used(
        tokens if found.tokens is None else found.tokens.plus(tokens),
        found.cost if price is None else (found.cost or 0) + price,
        failed,
    )


def _entries(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        try:
            yield dictionary(decoded(line))
        except ValueError:
            continue  # the first one may be cut


def _count(used: dict[str, Any], name: str) -> int:
    return max(integer(used.get(name)), 0)


def _price(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        price = float(value)
    except OverflowError:
        return None
    return price if math.isfinite(price) and price >= 0 else None
