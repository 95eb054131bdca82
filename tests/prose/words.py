"""Words that a newcomer would have to translate, and the form of log events."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.prose.sources import content, files, is_python, nodes

_WORDS: Final = (
    *("story", "stories", "patience", "patient", "told", "card", "cards", "mend", "mends", "mended", "overdue"),
    *("linger", "lingers", "lingered", "lingering", "speaks.for"),
)
_ANY_CASE: Final = rf"(?<![A-Za-z])(?i:{'|'.join(_WORDS)})"
_INSIDE_A_NAME: Final = rf"(?<=[a-z])(?:{'|'.join(word.capitalize() for word in _WORDS)})"
UNWANTED: Final = re.compile(rf"(?:{_ANY_CASE}|{_INSIDE_A_NAME})(?![a-z])")
"""What they meant has a name in Temporal, Kubernetes, Paperclip or OpenCode; docs/glossary.md has ours."""

ALLOWED: Final[dict[str, dict[str, str]]] = {
    "dev_stack/cluster/streams.py": {"linger": "the socket option SO_LINGER"},
    "tests/chaos/faulty_network.py": {"linger": "the socket option SO_LINGER"},
}
"""File -> word -> the plain meaning it has there."""

_LOCKS: Final = ("uv.lock", "adapter/package-lock.json")
_LOGGERS: Final = frozenset({"log", "logger"})
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_IRREGULAR: Final = "begun|built|forbidden|found|lost|sent"
EVENT: Final = re.compile(rf"[a-z_]+\.(?:[a-z_]+_)?(?:[a-z]+ed|{_IRREGULAR})(?:_[a-z_]+)?")
"""`object.verb`, the verb in the past tense: `watch.relisted`."""


def unwanted() -> Iterator[str]:
    """`path:line: word` of every word that is not allowed where it stands."""
    for path in files():
        allowed = ALLOWED.get(path, {})
        for number, line in enumerate(() if _is_data(path) else content(path).splitlines(), 1):
            for match in UNWANTED.finditer(line):
                if match[0].lower() not in allowed:
                    yield f"{path}:{number}: {match[0]}"


def unused() -> Iterator[str]:
    """What is allowed and occurs no more."""
    for path, words in ALLOWED.items():
        present = {match[0].lower() for match in UNWANTED.finditer(content(path))} if path in files() else set()
        yield from (f"{path}: {word}" for word in words if word not in present)


def _is_data(path: str) -> bool:
    """Locks, recorded histories, and the words that this check names itself."""
    recorded = path.startswith("tests/histories/") and not is_python(path)
    return recorded or path in _LOCKS or path.startswith("tests/prose/")


def events() -> Iterator[tuple[str, str]]:
    """Place and text of each constant that a module logs, but for sentences of `dev_stack` for people."""
    for path in files():
        if is_python(path) and not path.startswith("tests/"):
            for node in nodes(path):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id=logger), attr=level),
                        args=[ast.Constant(value=str(event)), *_],
                    ) if (
                        logger in _LOGGERS and level in _LEVELS and not (path.startswith("dev_stack/") and " " in event)
                    ):
                        yield f"{path}:{node.lineno}", event
