"""Limits how often one address tries operator tokens. In memory: each process that serves pages counts its own."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

LIMIT: Final = 10
"""Wrong tokens of one address in one `WINDOW`, which begins with the first of them."""
WINDOW: Final = timedelta(minutes=1)
MAX_ADDRESSES: Final = 10_000
"""Addresses in memory; those whose window began first are forgotten."""
_IPV6_NETWORK: Final = 64
"""Bits of an IPv6 address that count: whoever has one address has its whole network of so many."""


class WrongTokens:
    """The wrong tokens of each address in its present window."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, request: Request) -> None:
        """Refuse a token before it is compared, if its address has sent too many wrong ones.

        Raises:
            HTTPException: 429, with the seconds to wait in `Retry-After`.
        """
        began, count = self._window(_address(request))
        if count >= LIMIT:
            seconds = max(math.ceil(began + WINDOW.total_seconds() - self._clock()), 1)
            text = f"too many wrong operator tokens from this address: wait {seconds} s, then send the right one"
            raise HTTPException(429, text, {"Retry-After": str(seconds)})

    def add(self, request: Request) -> None:
        """Count a wrong token."""
        address = _address(request)
        began, count = self._window(address)
        self._windows[address] = began, count + 1
        if len(self._windows) > MAX_ADDRESSES:
            self._windows.popitem(last=False)

    def _window(self, address: str) -> tuple[float, int]:
        """Begin and count of the address's window; a new one, which is not kept, once the last one is over."""
        now = self._clock()
        began, count = self._windows.get(address, (now, 0))
        if now - began < WINDOW.total_seconds():
            return began, count
        del self._windows[address]
        return now, 0


def _address(request: Request) -> str:
    """The connection's address, as far as it counts; empty for a connection without one."""
    host = "" if request.client is None else request.client.host
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, _IPV6_NETWORK), strict=False))
    return host
