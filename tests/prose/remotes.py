"""A check that no runtime code pushes, or assumes that a workspace has a remote.

It reads text, not syntax, so that a command is found in a shell's spelling as well as in a list of arguments. Whatever
Python, TypeScript and sh have in common is enough for that: quotation marks, brackets and commas count as spaces.
"""

import re
from collections.abc import Iterator
from typing import Final

from tests.prose.sources import content, files

_ELSEWHERE: Final = ("tests/", "docs/", "bench/", ".ci/", "adapter/tests/")
"""Folders whose code is not part of a running system."""
_ENDINGS: Final = (".py", ".ts", ".mjs", ".js", ".sh", ".Dockerfile")

_PUNCTUATION: Final = str.maketrans(dict.fromkeys("\"'`()[]{},", " "))
_OPTION: Final = r"(?:\s+-\S+(?:\s+(?!-)\S+)?|\s+\w+=\S+)"
_COMMANDS: Final = "push|fetch|pull|clone|remote|ls-remote|send-pack|fetch-pack|submodule|request-pull"
COMMAND: Final = re.compile(rf"(?<![\w.])git{_OPTION}{{0,6}}\s+(?:{_COMMANDS})(?![\w(.=-])")
"""A command of git that needs a remote, in text whose punctuation is replaced by spaces."""
ASSUMPTION: Final = re.compile(
    r"""
      (?<![-\w/.])(?:origin|upstream)/[\w{$][-\w./]*      # a branch of a remote
    | (["'`])origin\1                                # the name itself, as an argument
    | refs/remotes/
    | @\{(?:u|upstream|push)\}
    | --(?:set-upstream|track)\b
    | \b(?:import|from)\s+(?:git|dulwich|pygit2)\b   # libraries that speak to remotes
    | ["'](?:simple-git|isomorphic-git|nodegit)["']
    """,
    re.VERBOSE,
)
"""A name that only a remote gives, in text as it is."""
PERMISSION: Final = re.compile(r"(?:#|//)\s*allow-remote:[ \t]*\S+")
"""A comment that allows what stands in its line or in the next one. It has to give the reason."""


def runtime_files() -> Iterator[str]:
    """Paths of what runs in a system: Python, TypeScript and JavaScript, sh, and recipes of images."""
    for path in files():
        if not path.startswith(_ELSEWHERE) and (path == "dev" or path.endswith(_ENDINGS)):
            yield path


def remotes(path: str) -> Iterator[str]:
    """`path:line: text` of every assumption in a file that no comment allows."""
    yield from (f"{path}:{line}: {' '.join(text.split())}" for line, text in assumptions(content(path)))


def assumptions(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of every assumption that no comment allows, in order."""
    allowed = {line + below for line in _permissions(text) for below in (0, 1)}
    yield from ((line, found) for line, found in _all_assumptions(text) if line not in allowed)


def unused_permissions(path: str) -> Iterator[str]:
    """`path:line` of every comment that allows nothing."""
    text = content(path)
    lines = {line for line, _ in _all_assumptions(text)}
    yield from (f"{path}:{line}" for line in _permissions(text) if not {line, line + 1} & lines)


def _all_assumptions(text: str) -> Iterator[tuple[int, str]]:
    spaced = text.translate(_PUNCTUATION)  # one character for one: positions stay
    found = [*COMMAND.finditer(spaced), *ASSUMPTION.finditer(text)]
    for match in sorted(found, key=lambda each: each.start()):
        yield _line(text, match.start()), text[match.start() : match.end()]


def _permissions(text: str) -> Iterator[int]:
    yield from (_line(text, match.start()) for match in PERMISSION.finditer(text))


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
