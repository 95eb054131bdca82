"""The requests for workspaces: what a token opens, what is refused by name, and what comes back."""

import io
import json
import zlib
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from joserfc.jwk import OctKey

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.transcript.tokens import Tokens
from agent_runs.web.server import serving
from agent_runs.web.workspaces import MAX_BLOCKS, Workspaces
from agent_runs.workspace.store import WorkspaceStore
from agent_runs.workspace.tree import BLOCK, Limits, digest
from tests.workspace.trees import blocks_of, tree

RUN = RunKey(agent_id="ada", company_id="Acme & Co", run_id="run-1")
FILES = {"a": b"one", "b/c": b"two" * BLOCK, "empty": b""}
TOKENS = Tokens([OctKey.generate_key(256)])


class Caller:
    """Sends the requests of one attempt."""

    def __init__(self, http: aiohttp.ClientSession, attempt: int = 0, run: RunKey = RUN) -> None:
        self._http = http
        self.token = TOKENS.mint_workspace(AttemptKey(run=run, attempt=attempt), timedelta(hours=1))

    async def __call__(self, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes, Mapping[str, str]]:
        named = {f"Workspace-{name.title()}": value for name, value in headers.items()}
        named["Authorization"] = f"Bearer {self.token}"
        async with self._http.post(f"/workspace/{path}", data=io.BytesIO(body), headers=named) as answer:
            return answer.status, await answer.read(), answer.headers

    async def refused(self, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        """Status and code of a refusal."""
        status, content, _ = await self(path, body, **headers)
        return status, json.loads(content)["code"]

    async def send(self, files: dict[str, bytes], kind: str = "out", **headers: str) -> int:
        """The ledger's number of a tree, all of whose blocks are sent."""
        blocks = [block for content in files.values() for block in blocks_of(content)]
        assert (await self("blocks", framed(blocks)))[0] == 204
        status, content, _ = await self("tree", zlib.compress(tree(files)), kind=kind, **headers)
        assert status == 200, content
        return int(json.loads(content)["number"])


def framed(blocks: list[bytes]) -> bytes:
    return b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def digests(*blocks: bytes) -> bytes:
    return b"".join(bytes.fromhex(digest(block)) for block in blocks)


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
async def http(tmp_path: Path, limits: Limits) -> AsyncIterator[aiohttp.ClientSession]:
    store = WorkspaceStore.open(f"file://{tmp_path}/store", limits=limits)
    async with serving(Workspaces(store, TOKENS).application) as base, aiohttp.ClientSession(base) as session:
        yield session


async def test_a_folder_goes_out_and_a_later_attempt_reads_it(http: aiohttp.ClientSession) -> None:
    plugin, pod = Caller(http), Caller(http, 1)
    assert await plugin.send(FILES) == 1
    status, packed, headers = await pod("read", bytes(8))
    assert (status, zlib.decompress(packed)) == (200, tree(FILES))
    assert (headers["Workspace-Number"], headers["Workspace-Kind"], headers["Workspace-Attempt"]) == ("1", "out", "0")
    wanted = blocks_of(FILES["b/c"])
    assert (await pod("read", (1).to_bytes(8, "big") + digests(*wanted)))[1] == framed(wanted)


async def test_only_missing_blocks_have_to_be_sent(http: aiohttp.ClientSession) -> None:
    pod = Caller(http, 1)
    await pod("blocks", framed([b"one"]))
    assert (await pod("missing", digests(b"one", b"two")))[1] == digests(b"two")
    status, content, _ = await pod("tree", zlib.compress(tree({"a": b"two"})), kind="checkpoint")
    assert (status, json.loads(content)["code"], json.loads(content)["blocks"]) == (409, "missing", [digest(b"two")])


async def test_a_pod_of_an_earlier_attempt_moves_nothing(http: aiohttp.ClientSession) -> None:
    first, second = Caller(http, 1), Caller(http, 2)
    await first.send({"a": b"one"}, "checkpoint")
    await second.send({"a": b"two"}, "checkpoint")
    assert await first.refused("tree", zlib.compress(tree({"a": b"one"})), kind="end") == (409, "fenced")
    assert zlib.decompress((await second("read", bytes(8)))[1]) == tree({"a": b"two"})


async def test_a_pod_cannot_change_what_its_work_is_compared_with(http: aiohttp.ClientSession) -> None:
    plugin, pod = Caller(http), Caller(http, 1)
    number = str(await plugin.send({"a": b"one"}))
    empty = zlib.compress(tree({}))
    for caller, kinds in ((pod, ("out", "returned", "begin")), (plugin, ("checkpoint", "end", "begin"))):
        for kind in kinds:
            assert await caller.refused("tree", empty, kind=kind, number=number) == (400, "refused")
    assert (await plugin("read", bytes(8)))[2]["Workspace-Number"] == number


async def test_the_entry_of_a_kind_is_found_and_a_return_is_recorded(http: aiohttp.ClientSession) -> None:
    plugin, pod = Caller(http), Caller(http, 1)
    await plugin.send({"a": b"one"})
    end = await pod.send({"a": b"two"}, "end", steps="7", session="ses%201")
    assert zlib.decompress((await plugin("read", bytes(8), kind="out"))[1]) == tree({"a": b"one"})
    assert (await plugin("tree", kind="returned", number=str(end)))[0] == 200
    assert (await plugin("read", bytes(8)))[2]["Workspace-Kind"] == "returned"
    await Caller(http, 2).send({"a": b"three"}, "end")
    assert await plugin.refused("tree", kind="returned", number=str(end)) == (409, "fenced")
    assert await plugin.refused("tree", kind="returned", number="99") == (404, "no_workspace")


async def test_a_token_opens_the_workspace_of_its_run_only(http: aiohttp.ClientSession) -> None:
    await Caller(http).send(FILES)
    other = Caller(http, 0, RUN.model_copy(update={"run_id": "run-2"}))
    assert await other.refused("read", bytes(8)) == (404, "no_workspace")
    await other.send({"a": b"own"})
    foreign = (1).to_bytes(8, "big") + digests(b"one")
    assert await other.refused("read", foreign) == (404, "no_workspace")
    for token in ("", "x" * 50, TOKENS.mint(RUN), TOKENS.mint_operator(timedelta(hours=1))):
        other.token = token
        assert await other.refused("missing", digests(b"one")) == (401, "token_refused")
    expired = TOKENS.mint_workspace(AttemptKey(run=RUN), timedelta(seconds=-1))
    other.token = expired
    assert await other.refused("read", bytes(8)) == (401, "token_refused")


async def test_what_is_malformed_is_refused_by_name(http: aiohttp.ClientSession) -> None:
    pod = Caller(http, 1)
    assert await pod.refused("missing", b"short") == (400, "refused")
    assert await pod.refused("blocks", b"\0\0\0\5abc") == (400, "refused")
    assert await pod.refused("blocks", framed([bytes(BLOCK + 1)])) == (400, "unusable")
    assert await pod.refused("blocks", bytes(MAX_BLOCKS + 1)) == (413, "refused")
    assert await pod.refused("tree", b"not deflated", kind="end") == (400, "unusable")
    assert await pod.refused("tree", zlib.compress(b"{}"), kind="end") == (400, "unusable")
    assert await pod.refused("tree", zlib.compress(tree({})), kind="begin") == (400, "refused")
    assert await pod.refused("tree", zlib.compress(tree({})), kind="end", steps="-1") == (400, "refused")


@pytest.mark.parametrize("limits", [Limits(bytes=10)])
async def test_the_limits_are_shown_and_kept(http: aiohttp.ClientSession, limits: Limits) -> None:
    async with http.get("/workspace") as answer:
        assert await answer.json() == {"limits": {"bytes": limits.bytes, "entries": None}}
    pod = Caller(http, 1)
    await pod("blocks", framed([b"eleven byte"]))
    large = zlib.compress(tree({"a": b"eleven byte"}))
    assert await pod.refused("tree", large, kind="checkpoint") == (413, "too_large")


async def test_a_storage_that_is_away_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = WorkspaceStore.open(f"file://{folder}")
    folder.rmdir()
    folder.write_text("no folder")
    async with serving(Workspaces(store, TOKENS).application) as base, aiohttp.ClientSession(base) as session:
        assert await Caller(session).refused("blocks", framed([b"one"])) == (503, "unavailable")
