"""The workspace store: blocks and trees of a company, and the ledger of each run, in any object storage.

Layout, below the company: `blocks/<2 digits>/<name>`, `trees/<name>`, `runs/<agent>/<run>/<number>`, and `unused`, what
the last purge found in no ledger. An object is never changed, but for `unused`; what is stored twice is the same.
"""

import asyncio
import hashlib
import os
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

import msgspec
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from agent_runs.contracts.identity import RunKey, identity_label
from agent_runs.workspace.encryption import KEY_BYTES, NotDecrypted, cipher_of
from agent_runs.workspace.tree import BLOCK, NO_LIMITS, Limits, Tree, UnusableTree, digest, read_tree

REQUESTS: Final = 32
"""To the storage at one time, for each operation."""
FILES: Final = 4
"""The same where the storage is a folder."""
GRACE: Final = timedelta(days=1)
"""Between the purge that finds an object unused and the one that deletes it."""
KEPT: Final = 3
"""Checkpoints of a run that can still be read; older ones are collected."""
_TIMEOUT: Final = timedelta(seconds=20)
_RETRY: Final[Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_label = lru_cache(maxsize=256)(identity_label)
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
_Arguments = ParamSpec("_Arguments")

Kind = Literal["out", "begin", "checkpoint", "end", "returned"]


class WorkspacesUnavailable(Exception):
    """The storage does not answer, or refuses. The text names it, and no credentials."""


class WorkspaceDamaged(Exception):
    """Something that was stored is missing, or is not what was stored."""


class _Missing(WorkspaceDamaged):
    """There is no such object."""


class BlocksMissing(Exception):
    """A tree names blocks that are not stored: send them, then the tree again."""

    def __init__(self, blocks: Sequence[str]) -> None:
        super().__init__(f"{len(blocks)} blocks of the tree are not stored")
        self.blocks = tuple(blocks)


class WorkspaceFenced(Exception):
    """A later attempt of the run has begun."""


class Record(msgspec.Struct, frozen=True):
    """An entry of a run's ledger.

    Attributes:
        attempt: which wrote it; 0 for Paperclip's side before the first.
        tree: name of a tree.
        steps: of the agent, that are in it.
        session: the agent's, that is in it.
    """

    attempt: int
    kind: Kind
    tree: str
    at: datetime
    steps: int = 0
    session: str = ""


@dataclass(frozen=True)
class _Unused:
    """What the last purge found in no ledger, and when, by the storage's own clock."""

    at: datetime
    paths: frozenset[str] = frozenset()

    def has(self, path: str, stored_at: datetime) -> bool:
        """Whether this object is one of them, and was not stored again since."""
        return path in self.paths and stored_at < self.at


@dataclass(frozen=True)
class Purged:
    """What a purge deleted."""

    runs: int = 0
    objects: int = 0


@dataclass(frozen=True)
class WorkspaceStore:
    """Workspaces of all companies.

    Attributes:
        key: encrypts what is stored; None: the storage is trusted.
        clock: of this machine, which a storage's times are compared with.
    """

    name: str
    objects: ObjectStore = field(repr=False)
    key: bytes | None = field(default=None, repr=False)
    limits: Limits = NO_LIMITS
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC), repr=False)

    @classmethod
    def open(cls, url: str, key: bytes | None = None, limits: Limits = NO_LIMITS) -> Self:
        """Open the storage at a URL: `file:///folder`, which is made, `s3://bucket/prefix`, `gs://…`, `az://…`.

        Credentials, region and endpoint are in the environment, by the names that the storage's own programs use.

        Raises:
            ValueError: no such URL, or no key of 32 bytes. The text does not quote the URL, which may have credentials.
        """
        parts = urlsplit(url)
        if key is not None and len(key) != KEY_BYTES:
            raise ValueError(f"the workspace key must have {KEY_BYTES} bytes")
        if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
            Path(parts.path).mkdir(mode=0o700, parents=True, exist_ok=True)
            objects: ObjectStore = LocalStore(parts.path)
        elif parts.scheme in {"s3", "gs", "az"} and parts.netloc:
            options: Any = {"timeout": _TIMEOUT, "connect_timeout": _TIMEOUT, "allow_http": _allows_http()}
            try:
                objects = from_url(url, client_options=options, retry_config=_RETRY)
            except BaseError as error:
                raise ValueError(f"the workspace store cannot be opened: {_reason(error)}") from None
        else:
            raise ValueError(
                "the workspace store's URL must be file:///FOLDER, s3://BUCKET, gs://BUCKET or az://CONTAINER"
            )
        return cls(f"{parts.scheme}://{parts.hostname or parts.path}", objects, key, limits)

    # blocks

    async def missing(self, company: str, blocks: Sequence[str]) -> list[str]:
        """Which of these blocks have to be sent before a tree may name them, in their order."""
        unused = await self._unused(company)

        def is_missing(block: str) -> bool:
            return not self._stays(self._block(company, block), unused)

        wanted = list(dict.fromkeys(blocks))
        answers = await self._all(is_missing, wanted)
        return [block for block, lacks in zip(wanted, answers, strict=True) if lacks]

    async def add_blocks(self, company: str, blocks: Iterable[bytes]) -> None:
        """Store blocks, also those that are stored already.

        Raises:
            UnusableTree: one is empty or longer than a block may be.
        """
        contents = list(blocks)
        if any(not 0 < len(content) <= BLOCK for content in contents):
            raise UnusableTree(f"a block has 1 to {BLOCK} bytes")

        def add(content: bytes) -> None:
            self._put(company, self._block(company, digest(content)), content)

        await self._all(add, contents)

    async def blocks(self, company: str, blocks: Sequence[str]) -> list[bytes]:
        """The contents of these blocks, in their order.

        Raises:
            WorkspaceDamaged: one is missing or was changed.
        """

        def read(block: str) -> bytes:
            content = self._get(company, self._block(company, block))
            if digest(content) != block:
                raise WorkspaceDamaged(f"{self.name}: block {block} was changed")
            return content

        return await self._all(read, blocks)

    # trees

    async def add_tree(self, company: str, raw: bytes, known: str | None = None) -> str:
        """Store a tree, all of whose blocks are stored, and return its name.

        Args:
            known: name of an earlier tree: if it stays, its blocks need not be looked for.

        Raises:
            UnusableTree: see `read_tree`.
            BlocksMissing: send these first.
        """
        tree = await asyncio.to_thread(read_tree, raw, self.limits)
        name = hashlib.sha256(raw).hexdigest()
        path = self._tree(company, name)
        unused = await self._unused(company)
        if not await _in_thread(self._stays, path, unused):
            old = set[str]()
            if known is not None and await _in_thread(self._stays, self._tree(company, known), unused):
                old = (await self.tree(company, known)).blocks
            if missing := await self.missing(company, sorted(tree.blocks - old)):
                raise BlocksMissing(missing)
            await _in_thread(lambda: self._put(company, path, zlib.compress(raw, 1)))
        return name

    async def tree(self, company: str, name: str) -> Tree:
        """A stored tree.

        Raises:
            WorkspaceDamaged: it is missing or was changed.
        """
        return await asyncio.to_thread(read_tree, await self.raw_tree(company, name))

    async def raw_tree(self, company: str, name: str) -> bytes:
        """A stored tree as it was sent. Raises as `tree`."""
        packed = await _in_thread(self._get, company, self._tree(company, name))
        try:
            raw = await asyncio.to_thread(zlib.decompress, packed)
        except zlib.error:
            raw = b""
        if hashlib.sha256(raw).hexdigest() != name:
            raise WorkspaceDamaged(f"{self.name}: tree {name} was changed")
        return raw

    # the ledger of a run

    async def ledger(self, run: RunKey) -> dict[int, Record]:
        """The entries by their numbers, ascending; the last one is where the run stands."""
        paths = sorted(await self._list(f"{_ledger(run)}/"))
        records = await self._records(run.company_id, paths)
        return {int(path.rpartition("/")[2]): record for path, record in records.items()}

    async def _records(self, company: str, paths: Sequence[str]) -> dict[str, Record]:
        """The entries at these paths, but for those that were collected since they were listed."""

        def read(path: str) -> Record | None:
            try:
                return msgspec.json.decode(self._get(company, path), type=Record)
            except _Missing:
                return None

        records = zip(paths, await self._all(read, paths), strict=True)
        return {path: record for path, record in records if record is not None}

    async def record(self, run: RunKey, record: Record) -> int:
        """Add an entry after the last one and return its number.

        Raises:
            WorkspaceFenced: a later attempt has an entry.
        """
        while True:
            ledger = await self.ledger(run)
            if any(each.attempt > record.attempt for each in ledger.values()):
                raise WorkspaceFenced(f"run {run.run_id}: a later attempt than {record.attempt} has begun")
            number = max(ledger, default=0) + 1
            path, content = f"{_ledger(run)}/{number:08}", msgspec.json.encode(record)
            if await _in_thread(self._put, run.company_id, path, content, new=True):
                old = [each for each, known in ledger.items() if known.kind == "checkpoint"]
                await self._delete(f"{_ledger(run)}/{each:08}" for each in sorted(old)[: -(KEPT - 1)])
                return number

    async def check_writable(self) -> None:
        """Write an object, read it and delete it.

        Raises:
            WorkspacesUnavailable: the storage refuses one of these, or replaces an object that is only to be created.
        """
        path = f"check-{uuid.uuid4()}"
        created = [await _in_thread(self._put, "", path, b"check", new=True) for _ in range(2)]
        await _in_thread(self._get, "", path)
        await self._delete([path])
        if created != [True, False]:
            raise WorkspacesUnavailable(f"{self.name}: it has no conditional writes (If-None-Match)")

    # what is no longer needed

    async def purge(self, company: str, before: datetime) -> Purged:
        """Delete the runs whose last entry is older, and what no ledger has named for a day.

        An object is deleted only by the second purge that finds it unused, and not if it was stored again meanwhile.
        """
        now, root = self.clock(), _label(company)
        runs: dict[str, list[str]] = {}
        for path in await self._list(f"{root}/runs/"):
            runs.setdefault(path.rpartition("/")[0], []).append(path)
        used, expired = set[str](), 0
        for paths in runs.values():
            records = (await self._records(company, paths)).values()
            if all(record.at < before for record in records):
                await self._delete(paths)
                expired += 1
                continue
            for name in {record.tree for record in records}:
                used |= {self._tree(company, name)}
                used |= {self._block(company, block) for block in (await self.tree(company, name)).blocks}
        stored = {**await self._list(f"{root}/blocks/"), **await self._list(f"{root}/trees/")}
        unused, found = {path: at for path, at in stored.items() if path not in used}, await self._unused(company)
        if found.at + GRACE > now:
            return Purged(expired)
        gone = [path for path, at in unused.items() if found.has(path, at)]
        await self._delete(gone)
        left = sorted(unused.keys() - set(gone))
        await _in_thread(self._put, company, f"{root}/unused", msgspec.json.encode(left))
        return Purged(expired, len(gone))

    async def companies(self) -> list[str]:
        """All that have something here, as `purge` takes them."""
        with self._naming_outages():
            found = await obstore.list_with_delimiter_async(self.objects)
        return sorted(prefix.strip("/") for prefix in found["common_prefixes"])

    async def _unused(self, company: str) -> _Unused:
        path = f"{_label(company)}/unused"
        at = await _in_thread(self._stored_at, path)
        if at is None:
            return _Unused(datetime(1970, 1, 1, tzinfo=UTC))
        return _Unused(at, msgspec.json.decode(await _in_thread(self._get, company, path), type=frozenset[str]))

    def _stays(self, path: str, unused: _Unused) -> bool:
        """Whether an object is stored, and not about to be deleted."""
        at = self._stored_at(path)
        return at is not None and not unused.has(path, at)

    # objects: these wait for the storage, so only threads call them

    def _block(self, company: str, block: str) -> str:
        name = cipher_of(_label(company), self.key).name(block)
        return f"{_label(company)}/blocks/{name[:2]}/{name}"

    def _tree(self, company: str, name: str) -> str:
        return f"{_label(company)}/trees/{cipher_of(_label(company), self.key).name(name)}"

    def _stored_at(self, path: str) -> datetime | None:
        """When an object was stored, by the storage's clock; None: it is not there."""
        with self._naming_outages():
            try:
                found = obstore.head(self.objects, path)
            except (NotFoundError, FileNotFoundError):
                return None
            return found["last_modified"]

    def _get(self, company: str, path: str) -> bytes:
        with self._naming_outages():
            try:
                content = bytes(obstore.get(self.objects, path).bytes())
            except (NotFoundError, FileNotFoundError):
                raise _Missing(f"{self.name}: {path} is missing") from None
        try:
            return cipher_of(_label(company), self.key).decrypt(path, content)
        except NotDecrypted:
            raise WorkspaceDamaged(f"{self.name}: {path} was changed, or encrypted with another key") from None

    def _put(self, company: str, path: str, content: bytes, *, new: bool = False) -> bool:
        """Store an object and return True. With `new`, return False if there is one, and leave it as it is."""
        data = cipher_of(_label(company), self.key).encrypt(path, content)
        with self._naming_outages():
            try:
                obstore.put(self.objects, path, data, mode="create" if new else "overwrite", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    async def _all(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """The results for all items, in their order."""
        at_once = FILES if isinstance(self.objects, LocalStore) else REQUESTS
        results: dict[int, _Result] = {}
        left, ends = iter(enumerate(items)), threading.Event()

        def take() -> None:
            for number, item in left:
                if not ends.is_set():
                    results[number] = work(item)

        try:
            await asyncio.gather(*(_in_thread(take) for _ in range(min(at_once, len(items)))))
        finally:
            ends.set()
        return [results[number] for number in range(len(items))]

    async def _list(self, prefix: str) -> dict[str, datetime]:
        """The objects below a prefix, and when they were stored."""
        found: dict[str, datetime] = {}
        with self._naming_outages():
            async for page in obstore.list(self.objects, prefix):
                found |= {each["path"]: each["last_modified"] for each in page}
        return found

    async def _delete(self, paths: Iterable[str]) -> None:
        with self._naming_outages():
            for path in list(paths):
                try:
                    await obstore.delete_async(self.objects, path)
                except (NotFoundError, FileNotFoundError):
                    continue

    @contextmanager
    def _naming_outages(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise WorkspacesUnavailable(f"{self.name}: {_reason(error)}") from None


def _allows_http() -> bool:
    """Whether the environment says so. obstore reads this variable only where it is given no option of the client."""
    return "true" in {os.environ.get(f"{name}_ALLOW_HTTP", "").lower() for name in ("AWS", "AZURE", "GOOGLE")}


def _ledger(run: RunKey) -> str:
    return "/".join((_label(run.company_id), "runs", _label(run.agent_id), _label(run.run_id)))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]


async def _in_thread(
    work: Callable[_Arguments, _Result], *args: _Arguments.args, **names: _Arguments.kwargs
) -> _Result:
    """Call this in a thread of its own, for which a process that ends does not wait.

    Of many small requests each takes a fraction of the CPU time that obstore's coroutines take.
    """
    result = Future[_Result]()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(work(*args, **names))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            result.set_exception(error)

    threading.Thread(target=run, name="workspaces", daemon=True).start()
    return await asyncio.wrap_future(result)
