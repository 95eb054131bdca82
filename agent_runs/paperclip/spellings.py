"""How a known text may be spelled in an agent's output: as it is, in JSON of several libraries, in a URL, in base64.

The place of a spelling among those of a value is part of its marker in stored transcripts: new ones go to the end.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, quote_plus

_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_COMPONENT: Final = "!'()*"
"""What JavaScript's `encodeURIComponent` leaves as it is, beside what Python does."""
_LINES: Final = {ord(each): f"\\u{ord(each):04x}" for each in "\u2028\u2029"}
_GO: Final = _LINES | {ord(each): f"\\u{ord(each):04x}" for each in "<>&"}
"""As Go's encoding/json writes them, and Ruby on Rails."""
_GSON: Final = _GO | {ord(each): f"\\u{ord(each):04x}" for each in "='"}
_PHP: Final = _LINES | {ord("/"): "\\/"}
_DOTNET: Final = {ord(each): f"\\u{ord(each):04X}" for each in "<>&'+`"}
_LOWER_HEX: Final = re.compile(r"\\u[0-9a-f]{4}")
_LONGEST_GROUP: Final = 3
"""Bytes that base64 turns into four characters."""


def spellings(value: str) -> Iterator[bytes]:
    """The value in every spelling that is searched for, always as many and in the same order; some may be equal."""
    yield _encoded(value)
    yield from map(_encoded, _in_json(value))
    yield from _in_urls(value)
    yield from _in_base64(_encoded(value))
    for text in _in_other_json(value):
        yield _encoded(text)
        yield _encoded(json.dumps(text, ensure_ascii=False)[1:-1])


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _in_json(value: str) -> Iterator[str]:
    """Inside JSON, where OpenCode puts every word; and inside JSON inside JSON, as tools print it."""
    for ascii_only in (False, True):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]


def _in_other_json(value: str) -> Iterator[str]:
    """As encoders write it that escape more than JSON needs: Go, Gson, PHP with its two ways, .NET, Jackson for ASCII.

    Source: the documentation of encoding/json, Gson, json_encode, System.Text.Json and Jackson's ESCAPE_NON_ASCII.
    """
    plain, ascii_only = (json.dumps(value, ensure_ascii=each)[1:-1] for each in (False, True))
    yield plain.translate(_GO)
    yield plain.translate(_GSON)
    yield plain.translate(_PHP)
    yield ascii_only.translate(_PHP)
    upper = [_with_upper_hex(json.dumps(part)[1:-1]) for part in value.split('"')]
    yield "\\u0022".join(part.translate(_DOTNET) for part in upper)
    yield '\\"'.join(upper)


def _with_upper_hex(text: str) -> str:
    return _LOWER_HEX.sub(lambda escape: "\\u" + escape[0][2:].upper(), text)


def _in_urls(value: str) -> Iterator[bytes]:
    """Percent-encoded, with every reserved character or without those that stay in a path or a component."""
    raw = _encoded(value)
    encoded = (quote(raw, safe=""), quote(raw, safe=_COMPONENT), quote(raw, safe="/"), quote_plus(raw))
    for text in encoded:
        yield text.encode()
        yield _with_lower_hex(text).encode()


def _with_lower_hex(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


def _in_base64(raw: bytes) -> Iterator[bytes]:
    """In both alphabets, wherever it begins in what is encoded, without the characters that its neighbours change."""
    for before in range(_LONGEST_GROUP):
        encoded = b64encode(bytes(before) + raw)
        whole = encoded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        yield whole
        yield whole.translate(_URL_SAFE)
