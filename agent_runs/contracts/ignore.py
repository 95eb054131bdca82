"""The patterns of `workspaceIgnore`: Git's, without negation and without backslashes.

`adapter/src/workspace/ignore.ts` has the same rules for the plugin; both are tested by `tests/fixtures/ignore.json`.
Source: git-scm.com, gitignore.
"""

import re
from collections.abc import Iterator
from typing import Final

LONGEST: Final = 200
"""Characters of a pattern."""
_TOKEN: Final = re.compile(r"\[(?P<not>[!^]?)(?P<set>\]?[^\]/]*)\]|(?P<any>\*+)|(?P<one>\?)|(?P<other>.)", re.DOTALL)

_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9-]")


def expression(pattern: str) -> str:
    """The regular expression of the paths that a pattern leaves out; what is below them goes as well.

    It is for `fullmatch` with `re.DOTALL`, and a path relative to the working directory.

    Raises:
        ValueError: says what is wrong, to come after the pattern.
    """
    if fault := next(_faults(pattern), None):
        raise ValueError(fault)
    names = pattern.strip("/").split("/")
    if "/" not in pattern.rstrip("/"):
        names = ["**", *names]
    found = "".join(_part(name, is_last=number == len(names)) for number, name in enumerate(names, 1))
    try:
        re.compile(found)
    except re.error:
        raise ValueError("has an unusable [set]") from None
    return found


def _faults(pattern: str) -> Iterator[str]:
    if len(pattern) > LONGEST:
        yield f"has more than {LONGEST} characters"
    if pattern.startswith("!"):
        yield "begins with '!': nothing can be taken in again"
    if "\\" in pattern or not pattern.isprintable():
        yield "has a backslash or a control character"
    if not {"", ".", ".."}.isdisjoint(pattern.removeprefix("/").removesuffix("/").split("/")):
        yield "has a part that is empty, '.' or '..'"
    if "[" in re.sub(r"\[[!^]?\]?[^\]/]*\]", "", pattern):
        yield "has a '[' without its ']'"


def _part(name: str, *, is_last: bool) -> str:
    if name == "**":
        return ".+" if is_last else "(?:.+/)?"
    return "".join(map(_translated, _TOKEN.finditer(name))) + ("" if is_last else "/")


def _translated(token: re.Match[str]) -> str:
    if token["any"]:
        return "[^/]*"
    if token["one"]:
        return "[^/]"
    if token["set"] is not None:
        members = _NO_NAME.sub(r"\\\g<0>", token["set"])
        return f"(?!/)[{'^' if token['not'] else ''}{members}]"
    return re.escape(token["other"])
