"""Reading folders whose agent is hostile, or just busy."""

import json
import os
import shutil
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_runs.contracts.ignore import expression
from agent_runs.pod.sidecar.workspace import database, scan
from agent_runs.pod.sidecar.workspace.scan import BLOCK, Scanner
from agent_runs.workspace.tree import digest, read_tree
from tests.pod.workspace.databases import INSERT, repeating, writing


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def session(tmp_path: Path) -> Path:
    folder = tmp_path / "session"
    folder.mkdir()
    return folder


@pytest.fixture
def scanner(work: Path, session: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scanner]:
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.chdir(own)
    with closing(Scanner({"workspace": str(work), "session/db": str(session)})) as scanner:
        yield scanner


def scanned(scanner: Scanner) -> dict[str, dict[str, Any]]:
    """The entries of a scan, which the service takes."""
    scanner.scan()
    read_tree(scanner.tree)
    return {entry["path"]: entry for entry in json.loads(scanner.tree)["entries"]}


def names(scanner: Scanner) -> set[str]:
    return {path.partition("/")[2] for path in scanned(scanner) if path.startswith("workspace/")}


def old(*files: Path) -> None:
    """Wait until the files were changed long ago."""
    newest = max(file.stat().st_ctime_ns for file in files)
    while time.time_ns() <= newest + scan.RACY:
        time.sleep(0.05)


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_what_is_no_file_folder_or_link_is_left_out_and_named(work: Path, scanner: Scanner) -> None:
    (work / "file").write_bytes(b"1")
    os.mkfifo(work / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(work / "socket"))
        (work / os.fsdecode(b"\xff\xfe")).write_bytes(b"1")
        (work / "link").symlink_to(os.fsdecode(b"\xff"))
        assert names(scanner) == {"file"}
    assert scanner.warnings.texts() == [
        "workspace/fifo: left out: it is no file, folder or link",
        "workspace/link: left out: its target is not UTF-8",
        "workspace/socket: left out: it is no file, folder or link",
        "workspace/\\xff\\xfe: left out: its name is not UTF-8",
    ]


def test_what_cannot_be_read_stays_as_it_was_with_all_below_it(work: Path, scanner: Scanner) -> None:
    (work / "folder/deep").mkdir(parents=True)
    (work / "folder/deep/file").write_bytes(b"1")
    (work / "file").write_bytes(b"1")
    (work / "folder-2").write_bytes(b"1")
    before = scanned(scanner)
    scanner.is_stored()
    shutil.rmtree(work / "folder")
    os.mkfifo(work / "folder")
    (work / "file").unlink()
    os.mkfifo(work / "file")
    os.mkfifo(work / "new")
    after = scanned(scanner)
    assert after == before
    assert list(after) == list(before)
    assert scanner.warnings.texts() == [
        "workspace/file: as it was before: it is no file, folder or link",
        "workspace/folder: as it was before: it is no file, folder or link",
        "workspace/new: left out: it is no file, folder or link",
    ]


def test_a_workspace_that_is_exchanged_for_a_link_stays_as_it_was(work: Path, scanner: Scanner) -> None:
    (work / "file").write_bytes(b"1")
    before = scanned(scanner)
    scanner.is_stored()
    shutil.rmtree(work)
    work.symlink_to("/etc")
    assert scanned(scanner) == before


def test_the_first_twenty_are_named_and_the_others_counted(work: Path, scanner: Scanner) -> None:
    for number in range(25):
        os.mkfifo(work / f"fifo-{number:02}")
    assert names(scanner) == set()
    assert len(scanner.warnings.texts()) == 21
    assert scanner.warnings.texts()[-1] == "and 5 more"


def test_what_cannot_be_read_is_left_out_and_named(work: Path, scanner: Scanner) -> None:
    (work / "file").write_bytes(b"1")
    (work / "file").chmod(0)
    if os.access(work / "file", os.R_OK):
        pytest.skip("root reads everything")
    assert names(scanner) == set()
    assert scanner.warnings.texts() == ["workspace/file: left out: Permission denied"]


def test_a_folder_that_is_exchanged_for_a_link_never_leads_out(tmp_path: Path, work: Path, scanner: Scanner) -> None:
    secret, folder, spare = tmp_path / "secret", work / "folder", tmp_path / "spare"
    secret.mkdir()
    folder.mkdir()
    for place, text in ((secret, b"of the sidecar"), (folder, b"of the agent")):
        (place / "file").write_bytes(text)
    link = tmp_path / "link"
    link.symlink_to(secret)

    def exchange() -> None:
        folder.rename(spare)
        link.rename(folder)
        folder.rename(link)
        spare.rename(folder)

    seen = Counter[str]()
    with repeating(exchange):
        end = time.monotonic() + 60
        while time.monotonic() < end and not (seen["dir"] > 200 and seen["link"] > 50 and seen["exchanged"] > 5):
            found = scanned(scanner)
            seen[found.get("workspace/folder", {}).get("kind", "absent")] += 1
            seen["exchanged"] += any("folder" in warning for warning in scanner.warnings.texts())
            assert digest(b"of the sidecar") not in scanner.blocks()
            for block, where in scanner.blocks().items():
                assert scanner.content(block, where) != b"of the sidecar"
    assert seen["dir"] > 200
    assert seen["link"] > 50
    assert seen["exchanged"] > 5, "no scan was in the middle of an exchange"


def test_a_root_that_is_a_link_is_left_out(work: Path, scanner: Scanner) -> None:
    work.rmdir()
    work.symlink_to("/etc")
    assert "workspace" not in scanned(scanner)
    assert scanner.warnings.texts() == ["workspace: left out: it is no folder"]


def test_roots_that_are_not_there_are_left_out_and_one_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "projects.json").write_bytes(b"{}")
    roots = {"workspace": "none", "session/home/.gemini/projects.json": "projects.json", "session/db": "none"}
    scanner = Scanner({place: str(tmp_path / name) for place, name in roots.items()})
    file = "session/home/.gemini/projects.json"
    assert list(scanned(scanner)) == ["session", "session/home", "session/home/.gemini", file]
    assert scanner.warnings.texts() == []


def test_patterns_are_relative_to_the_workspace(work: Path, session: Path) -> None:
    for path in ("node_modules/a/b", "lib/node_modules/c", "x.log", "lib/y.log", "lib/z"):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_bytes(b"1")
    (session / "x.log").write_bytes(b"1")
    roots = {"workspace": str(work), "session/db": str(session)}
    scanner = Scanner(roots, list(map(expression, ["/node_modules", "*.log"])))
    assert names(scanner) == {"lib", "lib/node_modules", "lib/node_modules/c", "lib/z"}
    assert "session/db/x.log" in scanned(scanner)


def test_a_file_that_has_not_changed_is_not_read_again(work: Path, scanner: Scanner) -> None:
    (work / "large").write_bytes(bytes(5 * BLOCK))
    (work / "small").write_bytes(b"1")
    old(work / "large", work / "small")
    before = scanned(scanner)
    at = bytes_read()
    assert scanned(scanner) == before
    assert bytes_read() - at < BLOCK
    (work / "small").write_bytes(b"2")
    assert scanned(scanner)["workspace/small"]["blocks"] == [digest(b"2")]
    assert bytes_read() - at < BLOCK


def test_a_file_that_changed_just_before_a_scan_is_read_again_by_the_next(work: Path, scanner: Scanner) -> None:
    (work / "file").write_bytes(bytes(5 * BLOCK))  # it may change again within one tick of the file system's clock
    before, at = scanned(scanner), bytes_read()
    assert scanned(scanner) == before
    assert bytes_read() - at >= 5 * BLOCK


def test_a_file_that_grows_while_it_is_read_is_sent_as_it_was_read(work: Path, scanner: Scanner) -> None:
    (work / "log").write_bytes(b"")
    with (work / "log").open("ab") as log:

        def grow() -> None:
            log.write(b"line\n" * 5000)
            log.flush()
            if log.tell() > 30 * BLOCK:
                log.truncate(0)

        with repeating(grow):
            for _ in range(30):
                entry = scanned(scanner)["workspace/log"]
                sizes = {place.at: place.size for place in scanner.blocks().values()}
                assert sum(sizes.values()) >= entry["size"] or len(sizes) < len(entry["blocks"])
                assert len(entry["blocks"]) == -(-entry["size"] // BLOCK)


# databases


def contents_of(scanner: Scanner, path: str, to: Path) -> sqlite3.Connection:
    """The database of the last scan, opened."""
    scanned_blocks = scanner.blocks()
    entry = next(each for each in json.loads(scanner.tree)["entries"] if each["path"] == path)
    pieces = [scanner.content(block, scanned_blocks[block]) for block in entry["blocks"]]
    to.write_bytes(b"".join(piece or b"" for piece in pieces))
    return sqlite3.connect(to)


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_database_that_is_written_to_is_carried_whole(
    session: Path, tmp_path: Path, scanner: Scanner, mode: str
) -> None:
    path = "session/db/a b?.db"
    with writing(session / "a b?.db", mode) as writer:
        count = 0

        def write() -> None:
            nonlocal count
            count += 1
            writer.execute("begin")
            writer.do(INSERT + f"[({count}, at) for at in range(50)])")
            writer.execute("commit")

        with repeating(write):
            scans = 0
            while count <= 8 or scans < 8:
                scans += 1
                at_least, copy = count - 1, tmp_path / f"{scans}.db"
                assert [each for each in scanned(scanner) if each.startswith("session/db/")] == [path]
                assert scanner.warnings.texts() == []
                with closing(contents_of(scanner, path, copy)) as read:
                    assert read.execute("pragma integrity_check").fetchall() == [("ok",)]
                    assert read.execute("select count(*) from pairs group by a having count(*) <> 50").fetchall() == []
                    assert (read.execute("select max(a) from pairs").fetchone()[0] or 0) >= at_least


def test_what_a_killed_writer_has_committed_is_carried(session: Path, tmp_path: Path, scanner: Scanner) -> None:
    for mode in ("wal", "delete"):
        with writing(session / f"{mode}.db", mode) as writer:
            writer.execute("pragma cache_size = 1")
            writer.execute("insert into pairs values (1, 1)")
            writer.execute("begin")
            writer.do(INSERT + "[(2, at) for at in range(20_000)])")
        assert (session / f"{mode}.db-{'wal' if mode == 'wal' else 'journal'}").stat().st_size > 0
        found = scanned(scanner)
        assert scanner.warnings.texts() == []
        assert f"session/db/{mode}.db" in found
        assert not any(path.endswith(database.BESIDE) for path in found)
        with closing(contents_of(scanner, f"session/db/{mode}.db", tmp_path / f"{mode}.copy")) as read:
            assert read.execute("pragma integrity_check").fetchall() == [("ok",)]
            assert read.execute("select a, b from pairs").fetchall() == [(1, 1)]


def test_a_database_that_has_not_changed_is_not_copied_again(session: Path, scanner: Scanner) -> None:
    with writing(session / "x.db") as writer:
        writer.execute("begin")
        writer.do(INSERT + "[(1, at) for at in range(200_000)])")
        writer.execute("commit")
        old(session / "x.db", session / "x.db-wal")
        before = scanned(scanner)
        at = bytes_read()
        assert scanned(scanner) == before
        assert bytes_read() - at < BLOCK
        writer.execute("insert into pairs values (2, 2)")
        assert scanned(scanner) != before


def test_a_database_that_is_locked_stays_as_it_was(
    session: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    with writing(session / "x.db", "delete") as writer:
        before = scanned(scanner)
        scanner.is_stored()
        writer.execute("begin exclusive")
        writer.execute("insert into pairs values (1, 1)")
        os.utime(session / "x.db")
        assert scanned(scanner)["session/db/x.db"] == before["session/db/x.db"]
        (warning,) = scanner.warnings.texts()
        assert warning == "session/db/x.db: as it was before: its copy failed: the database is locked"


def test_a_database_that_is_exchanged_for_a_link_never_leads_out(
    tmp_path: Path, session: Path, scanner: Scanner
) -> None:
    with writing(tmp_path / "secret.db", "delete") as secret, writing(session / "x.db", "delete"):
        secret.execute("insert into pairs values (42, 42)")
    link, place, spare = tmp_path / "link", session / "x.db", tmp_path / "spare"
    link.symlink_to(tmp_path / "secret.db")

    def exchange() -> None:
        place.rename(spare)
        link.rename(place)
        place.rename(link)
        spare.rename(place)

    copied, exchanged = 0, 0
    with repeating(exchange):
        end = time.monotonic() + 60
        while time.monotonic() < end and not (copied > 20 and exchanged > 20):
            found = scanned(scanner).get("session/db/x.db", {})
            exchanged += found.get("kind") != "file"
            if found.get("kind") == "file":
                copied += 1
                with closing(contents_of(scanner, "session/db/x.db", tmp_path / "copy")) as read:
                    assert read.execute("select * from pairs").fetchall() == []
    assert min(copied, exchanged) > 20


def test_many_databases_take_few_descriptors(session: Path, scanner: Scanner) -> None:
    for number in range(100):
        with closing(sqlite3.connect(session / f"{number}.db")) as made:
            made.execute("create table pairs (a integer, b integer)")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a folder that changes as it is listed
    assert len(scanned(scanner)) == 103
    assert len(os.listdir("/proc/self/fd")) - before <= scan.COPIES  # noqa: PTH208


def test_a_python_without_sqlite_says_so(session: Path, scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    with writing(session / "x.db"):
        pass
    monkeypatch.setattr(database, "sqlite3", None)
    assert "session/db/x.db" not in scanned(scanner)
    assert scanner.warnings.texts() == ["session/db/x.db: left out: this Python has no module sqlite3"]
