"""Reads JSON of many MiB outside the event loop without keeping Python's lock, and without a multiple of its memory.

One call of `json.loads` keeps the lock until all of the text is read: 16 MiB of `[[],[],...` are five million objects,
1.5 s in which no other thread runs, and 400 MiB. Here Python's own scanner, which lets other threads run between two
values, reads a large text; it counts the values, and reads a long string in pieces.
"""

import json
import re
from collections.abc import Callable
from json.decoder import JSONArray, JSONObject, scanstring  # type: ignore[attr-defined]  # unknown to typeshed
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # as above
from typing import Any, Final

LARGE: Final = 64 * 1024
"""Characters of a text that are read at once, in some 5 ms at most."""
MAX_VALUES: Final = 50_000
"""Values of a large text. Paperclip's contexts and OpenCode's events have hundreds."""

_PIECE: Final = re.compile(
    r'(?:[^"\\]{1,512}|\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u[0-9a-fA-F]{4}|.)){1,2048}', re.DOTALL
)
"""A part of a string that cuts no escape and no pair of surrogates."""
_LONG_NUMBER: Final = re.compile(r"[-+.eE0-9]{5000}")
"""Python refuses integers of more than 4300 digits, but only after it has read all of them."""

_Scan = Callable[[str, int], Any]


class TooManyValues(ValueError):
    """A large text of JSON has more values than `MAX_VALUES`."""


def load_json(text: str) -> Any:
    """The value that a text of JSON has; NaN and infinities are None. A large text is read best in a thread.

    Raises:
        ValueError: no JSON; or too many values, which `TooManyValues` says.
        RecursionError: nested too deeply.
    """
    if len(text) <= LARGE:
        return json.loads(text, parse_constant=_none)
    return _LargeDecoder().decode(text)


class _LargeDecoder(json.JSONDecoder):
    """Reads one text."""

    def __init__(self) -> None:
        super().__init__(parse_constant=_none)
        self._values = 0
        self.parse_object = self._object
        self.parse_array = self._array
        self.parse_string = _string
        self.scan_once = self._counted(py_make_scanner(self))

    def _array(self, at: tuple[str, int], scan: _Scan) -> Any:
        return JSONArray(at, self._counted(scan))

    def _object(self, at: tuple[str, int], strict: Any, scan: _Scan, *more: Any) -> Any:
        return JSONObject(at, strict, self._counted(scan), *more)

    def _counted(self, scan: _Scan) -> _Scan:
        def counted(text: str, index: int) -> Any:
            self._values += 1
            if self._values > MAX_VALUES:
                raise TooManyValues(f"more than {MAX_VALUES} values")
            if _LONG_NUMBER.match(text, index):
                raise ValueError("a number of thousands of digits")
            return scan(text, index)

        return counted


def _string(text: str, begin: int, strict: Any) -> tuple[str, int]:
    """The string that begins here, and where it ends."""
    pieces: list[str] = []
    while (piece := _PIECE.match(text, begin)) is not None and piece.end() < len(text):
        pieces.append(scanstring(f'{piece[0]}"', 0, strict)[0])
        begin = piece.end()
        if text[begin] == '"':
            return "".join(pieces), begin + 1
    rest, end = scanstring(text, begin, strict)
    return "".join([*pieces, rest]), end


def _none(_constant: str) -> None:
    return None
