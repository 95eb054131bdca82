"""Which values that a run's pod gets are secret, by the names they have and the places they are in.

Everything that the worker puts into the pod is examined here: what came sealed with the run, variables of the worker's
own pod that the agent inherits, and the operator's OpenCode configuration. A value that the pod gets by a reference to
a Kubernetes Secret is not known to the worker.
"""

import re
from base64 import b64decode
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.request import Secrets
from agent_runs.contracts.start import SealedJoin

MIN_LENGTH: Final = 8
"""Characters of the shortest value that is redacted: shorter ones occur in ordinary text by chance."""
MIN_LINE_LENGTH: Final = 16
"""The same for one line of a value that has several, such as a private key; and for a value that only looks secret."""
MIN_TOKEN_LENGTH: Final = 20
"""Characters of a part of an address or an argument that is taken for a token by its look."""
MAX_VALUES: Final = 500
"""Secret values of one run. Agents have dozens; each costs memory, and time for every line of output."""
MAX_LINES: Final = 500
"""Lines of secrets that have several; of more, the last ones are not searched for alone."""
MAX_NESTED_OPTIONS: Final = 3
"""Names in one argument, as in `--env=API_TOKEN=...`."""
MAX_NAMED: Final = 5
MAX_BYTES: Final = 256 * 1024
"""Bytes of all secret values of one run: they are kept in all spellings while the run's output is followed."""

_SECRET_NAME: Final = re.compile(
    r"token|secret|passw|passphrase|credential|api_?key|private_?key|access_?key|authorization|bearer|cookie"
    r"|(?:account|auth|deploy|encryption|master|signing|ssh|subscription)_?key|connection_?string|webhook|jwt"
    r"|(?:^|_)(?:auth|dsn|pat)$",
    re.IGNORECASE,
)
_SECRET_PARAMETER: Final = re.compile(r"^(?:auth|code|key|pat|pwd|sig|signature)$", re.IGNORECASE)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_TOKEN: Final = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[\w.~+=%-]+", re.ASCII)
_ORDINARY_HEADER: Final = re.compile(
    r"accept|accept-.*|cache-control|connection|content-type|host|http-referer|origin|referer|user-agent|x-title"
    r"|.*-(?:beta|version)",
    re.IGNORECASE,
)
_SCHEME: Final = re.compile(r"^(bearer|basic|token)\s+", re.IGNORECASE)
_REFERENCE: Final = re.compile(r"\{(?:env|file):[^{}]*\}")
"""What OpenCode replaces when it reads its configuration."""
_SERVER_KEYS: Final = frozenset({"args", "command", "env", "environment", "headers", "url"})
_OPTION: Final = re.compile(r"-{0,2}(?P<name>[\w.-]+)(?P<separator>[=:])\s*(?P<value>.+)", re.DOTALL)


def secret_values(
    secrets: Secrets,
    inherited: Mapping[str, str] | None = None,
    opencode: Mapping[str, Any] | None = None,
    keys: Collection[str] = (),
) -> tuple[tuple[str, str], ...]:
    """Names and values of everything to redact, in an order that later additions do not change.

    Args:
        inherited: literal variables of the worker's own pod that agents inherit.
        opencode: the operator's OpenCode configuration.
        keys: names of variables that are secret whatever they are called.

    Raises:
        InvalidRequest: there are too many to be searched for.
    """
    named = _named(secrets, inherited, opencode, keys)
    values = dict.fromkeys((name, part) for name, value in named for part in _parts(value))
    _check(values)
    return tuple(dict.fromkeys((*values, *_lines(named)[:MAX_LINES])))


def token_values(joined: SealedJoin) -> tuple[tuple[str, str], ...]:
    """The same of the tokens of a run that has joined. They come last, and do not count: they replace other tokens."""
    tokens = (("PAPERCLIP_API_KEY", joined.auth_token), ("PAPERCLIP_RUNTIME_TOOLS_TOKEN", joined.tools_token))
    return tuple((name, part) for name, token in tokens if token for part in _parts(token))


def warnings(
    secrets: Secrets,
    inherited: Mapping[str, str] | None = None,
    opencode: Mapping[str, Any] | None = None,
    keys: Collection[str] = (),
) -> tuple[str, ...]:
    """What `secret_values` leaves out of the same secrets, for people."""
    rest = _lines(_named(secrets, inherited, opencode, keys))[MAX_LINES:]
    names = ", ".join(dict.fromkeys(name[:40] for name, _ in rest[:MAX_NAMED]))
    note = f"{len(rest)} lines of long secrets ({names}) are hidden in the transcript only where the whole secret is"
    return (note,) if rest else ()


def _named(
    secrets: Secrets,
    inherited: Mapping[str, str] | None,
    opencode: Mapping[str, Any] | None,
    keys: Collection[str],
) -> tuple[tuple[str, str], ...]:
    sources = (*_sealed(secrets, keys), *_variables(inherited or {}, keys), *_in_opencode(opencode or {}))
    return tuple(dict.fromkeys(sources))


def _lines(named: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        (name, line)
        for name, value in named
        if "\n" in value.strip()
        for line in map(str.strip, value.splitlines())
        if len(line) >= MIN_LINE_LENGTH
    ]


def _check(values: Iterable[tuple[str, str]]) -> None:
    texts = {value for _, value in values}
    remedy = "pass the agent fewer secrets (environment variables, MCP headers, OpenCode configuration)"
    if len(texts) > MAX_VALUES:
        raise InvalidRequest(
            f"the agent has {len(texts)} secret values, and {MAX_VALUES} can be kept out of its transcript: {remedy}"
        )
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > MAX_BYTES:
        raise InvalidRequest(
            f"the agent's secrets have {size} bytes, and {MAX_BYTES} can be kept out of its transcript: {remedy}"
        )


def _parts(value: str) -> Iterator[str]:
    """The value and the passwords in it, each long enough."""
    bare = value.strip()
    for part in dict.fromkeys((bare, *_logins(bare), *_basic(bare))):
        if len(part) >= MIN_LENGTH and not _REFERENCE.fullmatch(part):
            yield part


def _sealed(secrets: Secrets, keys: Collection[str]) -> Iterator[tuple[str, str]]:
    if secrets.auth_token:
        yield "PAPERCLIP_API_KEY", secrets.auth_token
    yield from _variables(secrets.env, {*secrets.secret_env, *keys})
    yield from _variables(secrets.paperclip_env)
    yield from _in_servers(secrets.mcp_servers)
    yield from _in_opencode(secrets.opencode)


def _in_opencode(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Secrets of an OpenCode configuration: of its providers, of its MCP servers, and of everything else."""
    for key, block in config.items():
        if key == "mcp":
            yield from _in_servers(block)
        elif key in ("agent", "command", "mode"):
            for settings in block.values() if isinstance(block, Mapping) else ():
                yield from _in_provider(settings, key)
        elif key not in ("permission", "tools"):
            yield from _in_provider(block, key)


def _in_servers(servers: object) -> Iterator[tuple[str, str]]:
    for server, settings in servers.items() if isinstance(servers, Mapping) else ():
        if isinstance(settings, Mapping):
            yield from ((str(server), value) for value in _in_server(settings))


def _variables(variables: Mapping[str, str], bound: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Variables that are bound to secrets or named like one, and those that hold a password."""
    for name, value in variables.items():
        if name in bound or _SECRET_NAME.search(name) or any(_logins(value.strip())):
            yield name, value
        else:
            yield from ((name, part) for part in _in_query(value.strip()))


def _in_server(settings: Mapping[str, Any]) -> Iterator[str]:
    """The headers of an MCP server, bare of their scheme; secrets in its variables, its address and its arguments."""
    yield from _headers(settings.get("headers"))
    for block in (settings.get("env"), settings.get("environment")):
        yield from (value for _, value in _variables(_texts(block)))
    if isinstance(url := settings.get("url"), str):
        yield from _in_address(url)
    yield from _in_arguments([*_words(settings.get("command")), *_words(settings.get("args"))])
    for key, value in settings.items():
        if key not in _SERVER_KEYS:
            yield from (secret for _, secret in _in_setting(key, value, ""))


def _in_provider(block: object, name: str = "provider") -> Iterator[tuple[str, str]]:
    """API keys, headers and passwords, wherever they are in a provider's settings, with the provider's name."""
    if isinstance(block, Mapping):
        for key, value in block.items():
            yield from _in_setting(str(key), value, str(key) if name == "provider" else name)
    elif isinstance(block, list | tuple):
        for value in block:
            yield from _in_provider(value, name)
    elif isinstance(block, str):
        yield from ((name, part) for part in (*_logins(block), *_in_query(block)))


def _in_setting(key: str, value: object, name: str) -> Iterator[tuple[str, str]]:
    if _is_secret_name(key):
        yield from ((name, _without_scheme(text)) for text in _leaves(value))
    elif key.lower() == "headers":
        yield from ((name, header) for header in _headers(value))
    else:
        yield from _in_provider(value, name)


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for below in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _leaves(below)


def _headers(block: object) -> Iterator[str]:
    """The values of headers, bare of their scheme, without those that say nothing secret."""
    for name, value in _texts(block).items():
        if not _ORDINARY_HEADER.fullmatch(name):
            yield _without_scheme(value)


def _in_address(url: str) -> Iterator[str]:
    """Login, query values and path tokens of an MCP server's address. Paperclip's own addresses name no secret."""
    yield from _logins(url)
    yield from _in_query(url, MIN_LINE_LENGTH)
    parts = _split(url)
    if parts is None or _REFERENCE.match(url):
        return
    before = ""
    for segment in parts.path.split("/"):
        named = _SECRET_NAME.search(before) and len(segment) >= MIN_LINE_LENGTH
        if named or _looks_like_token(segment):
            yield from (segment, unquote(segment))
        before = segment


def _in_query(url: str, length: int | None = None) -> Iterator[str]:
    """Values in a query that are named like secrets or, if there is a `length`, as long; as written and decoded."""
    parts = _split(url)
    for pair in parts.query.split("&") if parts else ():
        for name, value in parse_qsl(pair):
            if _is_secret_name(name) or (length is not None and len(value) >= length):
                yield from (pair.partition("=")[2], value)


def _in_arguments(words: list[str]) -> Iterator[str]:
    """Values of options that are named like secrets, logins in addresses, and what looks like a token."""
    before = ""
    for word in words:
        if before.startswith("-") and _is_secret_name(before.lstrip("-")) and not word.startswith("-"):
            yield _without_scheme(word)
        yield from _in_word(word)
        before = word


def _in_word(word: str) -> Iterator[str]:
    for _ in range(MAX_NESTED_OPTIONS):
        option = _OPTION.fullmatch(word)
        if option and _is_secret_name(option["name"]):
            yield _without_scheme(option["value"])
            return
        if option is None or option["separator"] != "=":
            break
        word = option["value"]
    if "://" in word:
        yield from _in_address(word)
    elif _looks_like_token(word):
        yield word


def _looks_like_token(text: str) -> bool:
    """Letters and digits, long, and neither an id nor words, a version or a file name."""
    if len(text) < MIN_TOKEN_LENGTH or not _TOKEN.fullmatch(text) or _UUID.fullmatch(text):
        return False
    return max(map(len, re.split(r"[-_.]", text))) >= MIN_LINE_LENGTH


def _is_secret_name(name: str) -> bool:
    plain = name.replace("-", "_")
    return bool(_SECRET_NAME.search(plain) or _SECRET_PARAMETER.search(plain))


def _logins(url: str) -> Iterator[str]:
    """The password in an address, or the name where that is all there is; as written and decoded."""
    parts = _split(url)
    if parts is None or "@" not in parts.netloc:
        return
    login = parts.netloc.rpartition("@")[0]
    user, _, password = login.partition(":")
    secret = password or (user if len(user) >= MIN_LINE_LENGTH else "")
    if secret:
        yield from (secret, unquote(secret))


def _basic(value: str) -> Iterator[str]:
    """The password in a `Basic` header's value."""
    if len(value) < MIN_LENGTH or len(value) % 4:
        return
    try:
        user, colon, password = b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        return
    if user.isprintable() and colon:
        yield password


def _without_scheme(header: str) -> str:
    return _SCHEME.sub("", header.strip())


def _split(url: str) -> SplitResult | None:
    if "://" not in url:
        return None
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _texts(block: object) -> dict[str, str]:
    items = block.items() if isinstance(block, Mapping) else ()
    return {str(name): value for name, value in items if isinstance(value, str)}


def _words(value: object) -> list[str]:
    words = value if isinstance(value, list | tuple) else [value]
    return [word for word in words if isinstance(word, str)]
