"""What the API proxy forwards and what it refuses: rules without any input or output."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

import h11

from agent_runs.pod.sidecar.tokens import KEY_PLACEHOLDER, TOOLS_PLACEHOLDER, Tokens

MAX_TARGET = 64 * 1024
MAX_HEADERS = 100
METHODS = frozenset({b"DELETE", b"GET", b"HEAD", b"OPTIONS", b"PATCH", b"POST", b"PUT"})

_FOLDED_LINE = re.compile(rb"\n[ \t]")
_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
"""Headers that are about one connection. Source: RFC 9110 section 7.6.1."""

Header = tuple[bytes, bytes]


class RequestRefused(Exception):
    """A request that is not forwarded: status and reason."""

    def __init__(self, status: int, reason: str, code: str = "api_proxy_refused") -> None:
        super().__init__(reason)
        self.status = status
        self.code = code


def check(request: h11.Request, head: bytes, address: str) -> None:
    """Refuse what h11 takes and the proxy does not, and what a web page could make a browser in the pod send.

    Args:
        request: what h11 made of it.
        head: the request up to its body, as it was received.
        address: the proxy's own.

    Raises:
        RequestRefused: names the first rule that it breaks.
    """
    own, target, version = address.encode(), request.target, request.http_version
    names = [name for name, _ in request.headers]
    path = unquote_to_bytes(target.partition(b"?")[0])

    def values(wanted: bytes) -> list[bytes]:
        return [value.lower() for name, value in request.headers if name == wanted]

    not_allowed = (
        (request.method not in METHODS, 501, "requests of this method are not forwarded"),
        (version >= b"2", 505, "only HTTP/1.0 and HTTP/1.1 are forwarded"),
        (version not in (b"1.0", b"1.1"), 400, "only HTTP/1.0 and HTTP/1.1 are forwarded"),
        (len(target) > MAX_TARGET, 414, "the path is too long"),
        (not target.startswith(b"/"), 400, "only paths of Paperclip's API are forwarded, no other addresses"),
        (b"#" in target, 400, "the path has characters that must be percent-encoded"),
        ({b".", b".."} & {*re.split(rb"[/\\]", path)}, 400, "the path must not have '.' or '..' in it"),
        (len(names) > MAX_HEADERS, 431, "the request has too many headers"),
        (_FOLDED_LINE.search(head), 400, "a header is malformed"),
        ({b"content-length", b"transfer-encoding"} <= {*names}, 400, "the body's length is ambiguous"),
        (names.count(b"authorization") > 1, 400, "a request has one Authorization header at the most"),
        (any(b"http://" + host != own for host in values(b"host")), 403, f"the Host header must be that of {address}"),
        # allow-remote: the header of HTTP, nothing of git
        ({own} | {*values(b"origin")} != {own}, 403, "requests of web pages are not forwarded: foreign Origin"),
        (
            not {*values(b"sec-fetch-site")} <= {b"none", b"same-origin"},
            *(403, "requests of web pages are not forwarded: foreign Sec-Fetch-Site"),
        ),
    )
    for broken, status, reason in not_allowed:
        if broken:
            raise RequestRefused(status, reason)


def forwarded_headers(received: Iterable[Header], *but: bytes) -> list[Header]:
    """Return the headers of a message that are not about its connection, `but` for those that the proxy sets itself."""
    headers = list(received)
    of_connection = {
        word.strip().lower() for name, value in headers if name.lower() == b"connection" for word in value.split(b",")
    }
    left_out = _HOP_BY_HOP | of_connection | {*but}
    return [(name, value) for name, value in headers if name.lower() not in left_out]


def with_token(headers: list[Header], now: Tokens) -> list[Header]:
    """Return the headers with the current token in place of the agent's placeholder.

    Raises:
        RequestRefused: there is no Authorization, or no token.
    """
    credentials = next((value for name, value in headers if name.lower() == b"authorization"), None)
    if credentials is None:
        raise RequestRefused(401, "send PAPERCLIP_API_KEY: Authorization: Bearer $PAPERCLIP_API_KEY")
    scheme, _, word = credentials.partition(b" ")
    bearer = word.strip() if scheme.lower() == b"bearer" else b""
    if bearer not in (KEY_PLACEHOLDER.encode(), TOOLS_PLACEHOLDER.encode()):
        return headers
    is_key = bearer == KEY_PLACEHOLDER.encode()
    token = now.token if is_key else now.tools_token
    if not token:
        raise RequestRefused(503, "this run has no such token", "api_proxy_without_token")
    rest = [(name, value) for name, value in headers if name.lower() not in (b"authorization", b"x-paperclip-run-id")]
    sends_run_id = is_key or len(rest) + 1 < len(headers)
    return [
        *rest,
        (b"Authorization", b"Bearer " + token.encode()),
        *([(b"X-Paperclip-Run-Id", now.run_id.encode())] if sends_run_id and now.run_id else []),
    ]


def through_proxy(header: Header, base: str, address: str) -> Header:
    """Rewrite a redirection within Paperclip (at `base`) so that it leads through the proxy (at `address`)."""
    name, value = header
    inside = (value + b"/").startswith(base.encode() + b"/")
    if inside and name.lower() in (b"location", b"content-location"):
        return name, address.encode() + value[len(base.encode()) :]
    return header
