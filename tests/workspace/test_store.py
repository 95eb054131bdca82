"""What the workspace store promises, in a folder and on a real S3 server, encrypted and not."""

import asyncio
import os
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest

from agent_runs.contracts.identity import RunKey
from agent_runs.workspace.store import (
    KEPT,
    BlocksMissing,
    Kind,
    Record,
    WorkspaceDamaged,
    WorkspaceFenced,
    WorkspaceStore,
    WorkspacesUnavailable,
)
from agent_runs.workspace.tree import BLOCK, Limits, TreeTooLarge, UnusableTree, digest
from tests.support.cases import case
from tests.workspace.conftest import KEY
from tests.workspace.s3 import S3Server
from tests.workspace.trees import blocks_of, stored, tree

RUN = RunKey(agent_id="Ada", company_id="Acme & Co/../x", run_id="run-1")
COMPANY = RUN.company_id
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FILES = {"a": b"one", "b/c": b"two" * BLOCK, "empty": b"", "again": b"one"}


def record(tree: str, kind: Kind = "checkpoint", attempt: int = 1, *, age: timedelta = timedelta()) -> Record:
    return Record(attempt, kind, tree, datetime.now(UTC) - age, steps=3, session="ses_1")


async def contents(pieces: Awaitable[Sequence[bytes]]) -> bytes:
    return b"".join(await pieces)


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_tree_and_its_blocks_come_back_as_they_were_sent(store: WorkspaceStore) -> None:
    name = await stored(store, COMPANY, FILES)
    assert await store.raw_tree(COMPANY, name) == tree(FILES)
    content = FILES["b/c"]
    assert await contents(store.blocks(COMPANY, [digest(block) for block in blocks_of(content)])) == content
    assert await stored(store, COMPANY, FILES) == name


async def test_a_check_that_the_store_can_be_written_leaves_nothing_in_it(store: WorkspaceStore) -> None:
    await store.check_writable()
    assert [each async for page in obstore.list(store.objects) for each in page] == []
    assert await store.companies() == []


async def test_a_storage_that_replaces_what_is_only_to_be_created_cannot_be_used(
    store: WorkspaceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put

    def replaces(*words: Any, **options: Any) -> Any:
        return put(*words, **options | {"mode": "overwrite"})

    monkeypatch.setattr(obstore, "put", replaces)
    with pytest.raises(WorkspacesUnavailable, match="no conditional writes"):
        await store.check_writable()


async def test_only_what_is_not_stored_has_to_be_sent(store: WorkspaceStore) -> None:
    one, two, three = (digest(each) for each in (b"one", b"two", b"three"))
    assert await store.missing(COMPANY, [one, two, one]) == [one, two]
    await store.add_blocks(COMPANY, [b"two"])
    assert await store.missing(COMPANY, [three, two, one]) == [three, one]
    assert await store.missing("another", [two]) == [two]


async def test_a_tree_without_one_of_its_blocks_is_not_stored(store: WorkspaceStore) -> None:
    await store.add_blocks(COMPANY, [b"one"])
    with pytest.raises(BlocksMissing) as raised:
        await store.add_tree(COMPANY, tree(FILES))
    assert set(raised.value.blocks) == {digest(block) for block in blocks_of(FILES["b/c"])}
    name = await stored(store, COMPANY, {"a": b"one"})
    await store.add_blocks(COMPANY, [b"two"])
    later = await store.add_tree(COMPANY, tree({"a": b"one", "b": b"two"}), known=name)
    assert (await store.tree(COMPANY, later)).blocks == {digest(b"one"), digest(b"two")}


async def test_a_block_has_a_length_and_a_tree_its_limits(store: WorkspaceStore) -> None:
    for content in (b"", b"x" * (BLOCK + 1)):
        with pytest.raises(UnusableTree, match="a block has 1 to 1048576 bytes"):
            await store.add_blocks(COMPANY, [content])
    small = replace(store, limits=Limits(bytes=2))
    await store.add_blocks(COMPANY, [b"one"])
    with pytest.raises(TreeTooLarge):
        await small.add_tree(COMPANY, tree({"a": b"one"}))
    name = await stored(store, COMPANY, {"a": b"one"})
    assert len((await small.tree(COMPANY, name)).entries) == 2  # what is stored can be read under a smaller limit


async def test_of_many_writers_each_number_of_a_ledger_has_one(store: WorkspaceStore) -> None:
    numbers = await asyncio.gather(*(store.record(RUN, record(f"tree-{each}", "out", 0)) for each in range(8)))
    assert sorted(numbers) == list(range(1, 9))
    ledger = await store.ledger(RUN)
    assert list(ledger) == list(range(1, 9))
    assert {ledger[number].tree for number in numbers} == {f"tree-{each}" for each in range(8)}


async def test_an_attempt_that_was_replaced_moves_nothing(store: WorkspaceStore) -> None:
    await store.record(RUN, record("a", "begin", 1))
    await store.record(RUN, record("b", attempt=1))
    await store.record(RUN, record("b", "begin", 2))
    with pytest.raises(WorkspaceFenced, match="a later attempt than 1 has begun"):
        await store.record(RUN, record("c", attempt=1))
    await store.record(RUN, record("d", attempt=2))
    assert [(each.attempt, each.tree) for each in (await store.ledger(RUN)).values()][-1] == (2, "d")
    assert await store.ledger(RUN.model_copy(update={"agent_id": "ada"})) == {}


async def test_the_last_checkpoints_and_all_else_of_a_ledger_are_kept(store: WorkspaceStore) -> None:
    await store.record(RUN, record("out", "out", 0))
    await store.record(RUN, record("out", "begin"))
    for number in range(10):
        await store.record(RUN, record(f"tree-{number}"))
    ledger = await store.ledger(RUN)
    assert [each.tree for each in ledger.values()] == ["out", "out", *(f"tree-{each}" for each in range(10 - KEPT, 10))]
    assert max(ledger) == 12
    assert ledger[12].steps == 3


def after(store: WorkspaceStore, days: float) -> WorkspaceStore:
    """The same store so many days later, for a purge."""
    return replace(store, clock=lambda: datetime.now(UTC) + timedelta(days=days))


async def found_unused(store: WorkspaceStore, block: str) -> float:
    """Purges until this block is found unused, not in the second in which it was stored; returns the day."""
    days = 0.0
    async with asyncio.timeout(60):
        while not await store.missing(COMPANY, [block]):
            days += 1.1
            await after(store, days).purge(COMPANY, LONG_AGO)
    return days


async def test_what_no_ledger_names_goes_a_day_after_it_was_found_and_nothing_else(store: WorkspaceStore) -> None:
    kept = await stored(store, COMPANY, {"a": b"one", "b": b"two"})
    await store.record(RUN, record(kept))
    await stored(store, COMPANY, {"a": b"one", "b": b"three"})
    unused = digest(b"three")
    day = await found_unused(store, unused)
    assert await store.missing(COMPANY, [unused, digest(b"two")]) == [unused]  # whoever needs it sends it again
    assert (await store.purge(COMPANY, LONG_AGO)).objects == 0
    assert await contents(store.blocks(COMPANY, [unused])) == b"three"
    assert (await after(store, day + 1.1).purge(COMPANY, LONG_AGO)).objects >= 1
    with pytest.raises(WorkspaceDamaged, match="is missing"):
        await contents(store.blocks(COMPANY, [unused]))
    assert await contents(store.blocks(COMPANY, [digest(b"one"), digest(b"two")])) == b"onetwo"
    assert len((await store.tree(COMPANY, kept)).entries) == 3


async def test_what_is_needed_again_before_it_goes_stays(store: WorkspaceStore) -> None:
    await stored(store, COMPANY, {"a": b"one"})
    day = await found_unused(store, digest(b"one"))
    name = await stored(store, COMPANY, {"a": b"one"})
    await after(store, day + 1.1).purge(COMPANY, LONG_AGO)  # no ledger names it yet
    await store.record(RUN, record(name))
    await after(store, day + 2.2).purge(COMPANY, LONG_AGO)
    assert await contents(store.blocks(COMPANY, [digest(b"one")])) == b"one"
    assert len((await store.tree(COMPANY, name)).entries) == 2


async def test_the_blocks_of_an_earlier_tree_are_looked_for_once_it_is_unused(store: WorkspaceStore) -> None:
    earlier = await stored(store, COMPANY, {"a": b"one"})
    await found_unused(store, digest(b"one"))
    for known in (earlier, "0" * 64):
        with pytest.raises(BlocksMissing):
            await store.add_tree(COMPANY, tree({"b": b"one"}), known)


async def test_a_purge_goes_on_when_a_run_collects_its_checkpoints_meanwhile(tmp_path: Path) -> None:
    class Behind(WorkspaceStore):
        """Lists an entry that has been collected since."""

        async def _list(self, prefix: str) -> dict[str, datetime]:
            found = await super()._list(prefix)
            runs = {path.rpartition("/")[0] for path in found if "/runs/" in path}
            return found | {f"{run}/99999999": LONG_AGO for run in runs}

    store = Behind.open(f"file://{tmp_path}/store")
    name = await stored(store, COMPANY, {"a": b"one"})
    await store.record(RUN, record(name))
    assert (await store.purge(COMPANY, LONG_AGO)).runs == 0
    assert (await store.tree(COMPANY, name)).blocks == {digest(b"one")}


async def test_a_run_is_kept_until_its_last_entry_is_old(store: WorkspaceStore) -> None:
    other = RUN.model_copy(update={"run_id": "run-2"})
    name = await stored(store, COMPANY, {"a": b"one"})
    await store.record(RUN, record(name, age=timedelta(days=40)))
    await store.record(RUN, record(name, age=timedelta(days=31)))
    await store.record(other, record(name, age=timedelta(days=40)))
    await store.record(other, record(name, age=timedelta(days=29)))
    assert (await store.purge(COMPANY, datetime.now(UTC) - timedelta(days=30))).runs == 1
    assert await store.ledger(RUN) == {}
    assert len(await store.ledger(other)) == 2


async def test_what_was_changed_in_the_storage_is_named(tmp_path: Path) -> None:
    for key in (None, KEY):
        folder = tmp_path / str(key is None)
        store = WorkspaceStore.open(f"file://{folder}", key)
        name = await stored(store, COMPANY, {"a": b"one"})
        for path, content in files_in(folder).items():
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with case(key), pytest.raises(WorkspaceDamaged, match="was changed"):
            await contents(store.blocks(COMPANY, [digest(b"one")]))
        with case(key), pytest.raises(WorkspaceDamaged, match="was changed"):
            await store.raw_tree(COMPANY, name)


async def test_an_encrypted_storage_learns_neither_content_nor_which_files_are_known(tmp_path: Path) -> None:
    store = WorkspaceStore.open(f"file://{tmp_path}/s", KEY)
    for company in ("one", "two"):
        name = await stored(store, company, {"canary-name": b"canary content"})
        await store.record(RUN.model_copy(update={"company_id": company}), record(name))
    files = files_in(tmp_path)
    assert len(files) == len(set(files.values())) == 6
    assert len({path.name for path in files}) == 5  # two companies' blocks and trees have names of their own
    for path, content in files.items():
        assert b"canary" not in content
        assert b"ses_1" not in content
        assert not any(known in str(path) for known in (digest(b"canary content"), name))
    with pytest.raises(WorkspaceDamaged, match="another key"):
        await WorkspaceStore.open(f"file://{tmp_path}/s", KEY[::-1]).ledger(
            RUN.model_copy(update={"company_id": "one"})
        )


def test_a_store_that_cannot_be_opened_names_the_remedy_and_no_credentials(tmp_path: Path) -> None:
    for url in ("", "s3://", "ftp://user:secret@host/x", "file://host/x", "/folder", "postgresql://a:secret@b/c"):
        with case(url), pytest.raises(ValueError, match="must be file:///FOLDER, s3://BUCKET") as raised:
            WorkspaceStore.open(url)
        assert "secret" not in str(raised.value)
    with pytest.raises(ValueError, match="must have 32 bytes"):
        WorkspaceStore.open(f"file://{tmp_path}", b"short")


@pytest.mark.slow
async def test_after_a_crash_of_the_storage_all_that_was_acknowledged_is_there(s3: S3Server) -> None:
    store = WorkspaceStore.open(f"s3://{os.environ['S3_BUCKET']}/crash")
    contents_sent = [f"block {number}".encode() for number in range(200)]
    await store.add_blocks(COMPANY, contents_sent)
    number = await store.record(RUN, record("a"))
    s3("kill")
    s3.up()
    assert await store.missing(COMPANY, [digest(each) for each in contents_sent]) == []
    assert list(await store.ledger(RUN)) == [number]


@pytest.mark.slow
@pytest.mark.parametrize(("away", "back"), [("kill", "up"), ("freeze", "thaw")])
async def test_a_storage_that_is_away_is_named_in_bounded_time(s3: S3Server, away: str, back: str) -> None:
    store = WorkspaceStore.open(f"s3://{os.environ['S3_BUCKET']}/{away}")
    s3(away)
    try:
        with pytest.raises(WorkspacesUnavailable, match=r"^s3://workspaces: "):
            async with asyncio.timeout(150):
                await store.add_blocks(COMPANY, [b"one"])
    finally:
        s3(back)
    await store.add_blocks(COMPANY, [b"one"])
    assert await contents(store.blocks(COMPANY, [digest(b"one")])) == b"one"


async def fill(store: WorkspaceStore, sent: list[str]) -> None:
    """Stores blocks until the storage refuses; `sent` has those that it took."""
    while True:
        content = os.urandom(BLOCK)
        await store.add_blocks(COMPANY, [content])
        sent.append(digest(content))


@pytest.mark.slow
async def test_a_storage_that_is_full_takes_no_more_and_loses_nothing(s3: S3Server) -> None:
    s3("down")
    s3.up("--limit", "64")
    try:
        store, sent = WorkspaceStore.open(f"s3://{os.environ['S3_BUCKET']}/full"), list[str]()
        with pytest.raises(WorkspacesUnavailable, match=r"^s3://workspaces: "):
            await fill(store, sent)
        assert 10 < len(sent) < 100
        assert [digest(content) for content in await store.blocks(COMPANY, sent)] == sent
    finally:
        s3("down")
        s3.up()
