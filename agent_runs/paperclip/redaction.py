"""Redacts a run's known secrets in its agent's output, reversibly.

The values of the secrets that Paperclip passed to the run are known. Each is searched for as it is and as JSON spells
it, and replaced by a marker with the variable's name. Whoever has the secrets can restore the output exactly, so the
digest over what the agent wrote can be checked against a transcript that does not hold them. This protects against
accidents such as `env` in a shell; an agent that splits or encodes a secret is not stopped.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlsplit

from agent_runs.contracts.request import Secrets

MIN_LENGTH: Final = 8
"""Characters of the shortest value that is redacted: shorter ones occur in ordinary text by chance."""
MIN_LINE_LENGTH: Final = 16
"""The same for one line of a value that has several, such as a private key."""

_SECRET_NAME: Final = re.compile(
    r"token|secret|passw|passphrase|credential|api_?key|private_?key|access_?key|authorization|bearer|cookie",
    re.IGNORECASE,
)
_INTRODUCER: Final = b"[[secret:"
_LITERAL: Final = b"[[secret:]]"
"""Stands for an introducer that the agent wrote itself."""
_MARKER: Final = re.compile(rb"\[\[secret:[^\[\]]*\]\]")
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class Redaction:
    """Replaces known values by markers, and back: `restore(redact(line)) == line`, whatever the line."""

    _markers: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    _values: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    _pattern: re.Pattern[bytes] | None = field(default=None, repr=False)

    @classmethod
    def from_secrets(cls, secrets: Secrets) -> Self:
        """Redacts a run's token, variables bound to secrets or named like one, and headers of MCP servers."""
        markers: dict[bytes, bytes] = {}
        times: Counter[str] = Counter()
        for name, value in dict.fromkeys(_secret_values(secrets)):
            label = _NOT_IN_LABELS.sub("_", name)
            times[label] += 1
            which = label if times[label] == 1 else f"{label}.{times[label]}"
            for turn, spelling in enumerate(_spellings(value)):
                marker = f"[[secret:{which}:{turn}]]" if turn else f"[[secret:{which}]]"
                markers.setdefault(spelling.encode("utf-8", "surrogatepass"), marker.encode())
        if not markers:
            return cls()
        longest_first = sorted(markers, key=len, reverse=True)
        pattern = re.compile(b"|".join(re.escape(value) for value in (*longest_first, _INTRODUCER)))
        markers[_INTRODUCER] = _LITERAL
        return cls(markers, {marker: value for value, marker in markers.items()}, pattern)

    def redact(self, data: bytes) -> bytes:
        """`data` with a marker for each secret; the same object when there is none in it."""
        for value in self._markers:  # a dozen plain searches cost a tenth of one search for any of a dozen
            if value in data and self._pattern is not None:
                return self._pattern.sub(lambda match: self._markers[match[0]], data)
        return data

    def restore(self, data: bytes) -> bytes:
        """The original of what `redact` returned. A marker of secrets that are not known here stays as it is."""
        if self._pattern is None or _INTRODUCER not in data:
            return data
        return _MARKER.sub(lambda match: self._values.get(match[0], match[0]), data)


def _secret_values(secrets: Secrets) -> Iterator[tuple[str, str]]:
    """Names and values of everything to redact, each value long enough."""
    for name, value in _named_secrets(secrets):
        yield from ((name, part) for part in (value.strip(), _password(value)) if len(part) >= MIN_LENGTH)
        if "\n" in value.strip():
            yield from ((name, line) for line in map(str.strip, value.splitlines()) if len(line) >= MIN_LINE_LENGTH)


def _named_secrets(secrets: Secrets) -> Iterator[tuple[str, str]]:
    if secrets.auth_token:
        yield "PAPERCLIP_API_KEY", secrets.auth_token
    for name, value in secrets.env.items():
        if name in secrets.secret_env or _SECRET_NAME.search(name) or _password(value):
            yield name, value
    for name, value in secrets.paperclip_env.items():
        if _SECRET_NAME.search(name) or _password(value):
            yield name, value
    for server, settings in secrets.mcp_servers.items():
        yield from ((server, value) for value in _server_secrets(settings))


def _server_secrets(settings: Mapping[str, Any]) -> Iterator[str]:
    """The headers of an MCP server, bare of their scheme, and variables that are named like secrets."""
    headers = settings.get("headers")
    for value in headers.values() if isinstance(headers, Mapping) else ():
        if isinstance(value, str):
            yield re.sub(r"^(Bearer|Basic|Token)\s+", "", value.strip(), flags=re.IGNORECASE)
    for block in (settings.get("env"), settings.get("environment")):
        for name, value in block.items() if isinstance(block, Mapping) else ():
            if isinstance(value, str) and _SECRET_NAME.search(str(name)):
                yield value


def _password(value: str) -> str:
    """The password in an address such as a database's or a repository's; empty without one."""
    if "://" not in value:
        return ""
    try:
        return urlsplit(value.strip()).password or ""
    except ValueError:
        return ""


def _spellings(value: str) -> Iterator[str]:
    """As it is; inside JSON, where OpenCode puts every word; and inside JSON inside JSON, as tools print it."""
    yield value
    for plain in (False, True):
        once = json.dumps(value, ensure_ascii=plain)[1:-1]
        yield once
        yield json.dumps(once, ensure_ascii=plain)[1:-1]
