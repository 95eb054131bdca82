"""The limit of attempts at the operator token."""

from contextlib import suppress

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agent_runs.web.wrong_tokens import LIMIT, MAX_ADDRESSES, WINDOW, WrongTokens


def request(host: str | None) -> Request:
    client = None if host is None else (host, 1234)
    return Request({"type": "http", "client": client, "headers": []})


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def admitted(wrong: WrongTokens, host: str | None) -> bool:
    with suppress(HTTPException):
        wrong.check(request(host))
        return True
    return False


def test_the_limit_is_of_one_address_and_one_minute() -> None:
    clock = Clock()
    wrong = WrongTokens(clock)
    for _ in range(LIMIT):
        assert admitted(wrong, "10.0.0.7")
        wrong.add(request("10.0.0.7"))
        clock.now += 1
    with pytest.raises(HTTPException) as refused:
        wrong.check(request("10.0.0.7"))
    assert refused.value.headers == {"Retry-After": str(60 - LIMIT)}
    assert admitted(wrong, "10.0.0.8")
    clock.now += WINDOW.total_seconds() - LIMIT
    assert admitted(wrong, "10.0.0.7")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("fd00::1", "fd00::ffff:2", True),
        ("fd00::1", "fd00:0:0:1::1", False),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.8", False),
        (None, None, True),
    ],
)
def test_an_ipv6_network_counts_as_one_address(one: str | None, other: str | None, same: bool) -> None:
    wrong = WrongTokens(Clock())
    for _ in range(LIMIT):
        wrong.add(request(one))
    assert admitted(wrong, other) is not same


def test_memory_is_bounded() -> None:
    wrong = WrongTokens(Clock())
    for number in range(MAX_ADDRESSES + LIMIT):
        wrong.add(request(f"host-{number}"))
    assert len(wrong._windows) == MAX_ADDRESSES
