"""The few habits of JavaScript that Paperclip's texts depend on: trimming, numbers, JSON, string length.

Paperclip's helpers are JavaScript; a template or a metric computed here must equal theirs.
Source: ECMA-262, String.prototype.trim, Number::toString, JSON.stringify, "UTF-16 code units".
"""

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

WHITESPACE: Final = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SAFE_INTEGER: Final = 2**53
_PLAIN_DIGITS: Final = 21
_SMALLEST_PLAIN_EXPONENT: Final = -6


def trim(text: str) -> str:
    """`text` without JavaScript's white space at both ends; Python's own idea of white space differs."""
    return text.strip(WHITESPACE)


def well_formed(text: str) -> str:
    """`text` with each lone surrogate replaced by U+FFFD, as UTF-8 encoders in JavaScript do."""
    try:
        text.encode()  # a tenth of the time of a search, and nearly every text is well formed
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def length(text: str) -> int:
    """The length of `text` in UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def shorten(text: str, limit: int) -> str:
    """At most `limit` UTF-16 code units of `text`, without half a surrogate pair, and with an ellipsis if it is cut."""
    if length(text) <= limit:
        return text
    kept = text.encode("utf-16-le", "surrogatepass")[: 2 * (limit - 1)]
    return kept.decode("utf-16-le", "ignore") + "…"


def number(value: float) -> str:
    """A number as `String(value)` writes it: `1` for 1.0, `1e+21`, `1e-7`."""
    if isinstance(value, int) and abs(value) <= _SAFE_INTEGER:
        return str(value)
    double = _double(value)
    if not math.isfinite(double):
        return "NaN" if math.isnan(double) else ("Infinity" if double > 0 else "-Infinity")
    if double == 0:
        return "0"
    return ("-" if double < 0 else "") + _positive(abs(double))


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _positive(value: float) -> str:
    # Python's repr finds the same shortest digits; only their layout differs.
    _, parts, exponent = Decimal(repr(value)).normalize().as_tuple()
    digits = "".join(map(str, parts))
    point = len(digits) + int(exponent)
    if len(digits) <= point <= _PLAIN_DIGITS:
        return digits + "0" * (point - len(digits))
    if 0 < point <= _PLAIN_DIGITS:
        return f"{digits[:point]}.{digits[point:]}"
    if _SMALLEST_PLAIN_EXPONENT < point <= 0:
        return f"0.{'0' * -point}{digits}"
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{mantissa}e{point - 1:+d}"


def stringify(value: Any) -> str:
    """JSON as `JSON.stringify(value)` writes it: compact, non-ASCII as it is, numbers in JavaScript's layout.

    Takes what `json.loads` gives. Lone surrogates are escaped, NaN and infinities are `null`.
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(str(key))}:{stringify(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(stringify(item) for item in value) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return number(value) if math.isfinite(_double(value)) else "null"


def _quoted(text: str) -> str:
    return _SURROGATE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", json.dumps(text, ensure_ascii=False))
