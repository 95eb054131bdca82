"""The log endpoint: what a follower can build on, and what it has to live with."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

from tests.contract.api import Api, container, running, state

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ")


async def test_a_log_is_what_was_printed(api: Api) -> None:
    assert await api.output("echo out; echo; printf 'tab\\there\\n'") == "out\n\ntab\there\n"


async def test_both_streams_are_in_the_log(api: Api) -> None:
    text = await api.output("echo out; echo err >&2")
    assert sorted(text.splitlines()) == ["err", "out"]


async def test_an_unterminated_last_line_stays_unterminated(api: Api) -> None:
    assert await api.output("echo whole; printf part") == "whole\npart"


async def test_bytes_that_are_no_text_come_through_but_a_carriage_return_before_a_line_end(api: Api) -> None:
    own = await api.run("printf 'a\\377b\\rc\\r\\n\\033[1mx\\n'")
    await api.until_ended(own)
    async with api.session.get(api.path(f"pods/{own}/log")) as reply:
        assert await reply.read() == b"a\xffb\rc\n\x1b[1mx\n"


async def test_timestamps_have_nine_digits_and_rise(api: Api) -> None:
    own = await api.run("for i in 1 2 3; do echo $i; done")
    await api.until_ended(own)
    lines = (await api.log(own, timestamps="true")).splitlines()
    assert [STAMP.sub("", line) for line in lines] == ["1", "2", "3"]
    stamps = [line.split(" ")[0] for line in lines]
    assert stamps == sorted(stamps)
    assert all(len(one) == 30 for one in stamps)


async def test_a_long_line_comes_back_in_one(api: Api) -> None:
    text = await api.output("head -c 100000 /dev/zero | tr '\\0' x; echo; echo after")
    assert text == "x" * 100_000 + "\nafter\n"


async def test_since_counts_whole_seconds_inclusive(api: Api) -> None:
    own = await api.run("for i in 1 2 3 4; do echo $i; sleep 0.7; done")
    await api.until_ended(own)
    lines = (await api.log(own, timestamps="true")).splitlines()
    third = lines[2].split(" ")[0]
    late_in_its_second = f"{third[:19]}.999999999Z"
    got = (await api.log(own, sinceTime=late_in_its_second)).splitlines()
    assert got == [line[31:] for line in lines if line[:19] >= third[:19]]
    assert "3" in got
    assert "1" not in got


async def test_since_the_future_is_empty(api: Api) -> None:
    own = await api.run("echo x")
    await api.until_ended(own)
    future = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert await api.log(own, sinceTime=future) == ""


async def test_since_seconds_count_back_from_now_by_the_nodes_clock(api: Api) -> None:
    own = await api.run("echo old; sleep 3; echo new; sleep 600")
    await api.until(f"pods/{own}", running)
    async with api.follow(own) as log:
        assert [await log.readline() for _ in range(2)] == [b"old\n", b"new\n"]
    assert await api.log(own, sinceSeconds="600") == "old\nnew\n"
    assert "old" not in await api.log(own, sinceSeconds="2")
    await asyncio.sleep(2.5)  # the node's clock is what is tested
    assert await api.log(own, sinceSeconds="1") == ""


async def test_a_follow_is_live_and_ends_with_the_container(api: Api) -> None:
    volumes = [{"name": "v", "emptyDir": {}}]
    own = await api.run("echo first; sleep 1; echo second; printf third", volumes=volumes)
    await api.until(f"pods/{own}", lambda body: running(body) or "terminated" in state(body))
    async with api.follow(own, timestamps="true") as log:
        first = (await log.readline()).decode()
        assert STAMP.sub("", first) == "first\n"
        rest = (await log.read()).decode()
    assert STAMP.sub("", rest) == "second\nthird"


async def test_many_followers_get_every_line(api: Api) -> None:
    own = await api.run("sleep 1; i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); done")
    await api.until(f"pods/{own}", lambda body: running(body) or "terminated" in state(body))

    async def read() -> str:
        async with api.follow(own) as log:
            return (await log.read()).decode()

    texts = await asyncio.gather(*(read() for _ in range(8)))
    assert set(texts) == {"".join(f"line {index}\n" for index in range(300))}


async def test_a_follow_of_what_has_ended_ends(api: Api) -> None:
    own = await api.run("echo over")
    await api.until_ended(own)
    async with api.follow(own) as log:
        assert await log.read() == b"over\n"


async def test_a_follow_ends_when_the_pod_is_deleted(api: Api) -> None:
    own = await api.run("echo here; sleep 600")
    await api.until(f"pods/{own}", running)
    async with api.follow(own) as log:
        assert await log.readline() == b"here\n"
        await api.delete(f"pods/{own}", grace=1)
        rest = await log.read()
        assert rest == b"" or rest.startswith(b"rpc error: ")  # a kubelet may put its errors into the stream
    await api.until_deleted(f"pods/{own}")
    assert (await api.get(f"pods/{own}/log")).code == 404


async def test_a_log_needs_a_container_name_when_there_are_two(api: Api) -> None:
    spec = {
        "initContainers": [container("true", "first")],
        "containers": [container("echo a", "a"), container("", "b")],
    }
    own = await api.run("", **spec)
    await api.until_ended(own)
    assert await api.log(own, container="a") == "a\n"
    refused = await api.get(f"pods/{own}/log")
    assert (refused.code, refused.reason) == (400, "BadRequest")
    assert refused.message == (f"a container name must be specified for pod {own}, choose one of: [first a b]")
    wrong = await api.get(f"pods/{own}/log", container="nobody")
    assert wrong.code == 400
    assert wrong.message == f"container nobody is not valid for pod {own}"


async def test_the_log_of_a_missing_pod_is_404(api: Api, name: str) -> None:
    missing = await api.get(f"pods/{name}/log")
    assert (missing.code, missing.message) == (404, f'pods "{name}" not found')
