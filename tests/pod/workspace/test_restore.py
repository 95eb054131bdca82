"""What an init container makes of a stored tree."""

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from agent_runs.pod.sidecar.workspace.scan import BLOCK
from tests.pod.workspace.databases import INSERT, repeating, writing
from tests.pod.workspace.pods import Pod, content
from tests.pod.workspace.service import Run, Service


def fill(pod: Pod) -> None:
    (pod.workspace / "src" / "empty").mkdir(parents=True)
    (pod.workspace / "src" / "main.py").write_bytes(b"print()\n")
    (pod.workspace / "src" / "run").symlink_to("../run.sh")
    (pod.workspace / "run.sh").write_bytes(b"#!/bin/sh\n")
    (pod.workspace / "run.sh").chmod(0o755)
    (pod.workspace / "large").write_bytes(os.urandom(3 * BLOCK + 1))
    (pod.session / "state").write_bytes(b"{}")


def test_a_tree_is_made_as_it_was_and_only_once(pod: Pod, other: Pod, service: Service) -> None:
    fill(pod)
    pod.keeper().end()
    code, said = other.restore()
    assert (code, said.partition(" in ")[0]) == (0, "workspace: 4 files, 3145749 bytes")
    assert content(other.workspace) == content(pod.workspace)
    assert content(other.session) == content(pod.session)
    asked = service.asked["read"]
    assert other.restore()[1].endswith("; 4 were there\n")
    assert service.asked["read"] == asked + 1  # the tree alone


def test_equal_blocks_come_once(pod: Pod, other: Pod, service: Service) -> None:
    with (pod.workspace / "sparse").open("wb") as file:
        file.truncate(64 * BLOCK + 1)
    (pod.workspace / "other").write_bytes(bytes(BLOCK))
    pod.keeper().end()
    assert other.restore()[0] == 0
    assert content(other.workspace) == content(pod.workspace)
    assert service.asked["read"] == 2  # the tree, and all blocks


def test_what_is_not_in_the_tree_goes_and_no_link_is_followed(pod: Pod, other: Pod, tmp_path: Path) -> None:
    fill(pod)
    pod.keeper().end()
    outside = tmp_path / "outside"
    (outside / "empty").mkdir(parents=True)
    (outside / "main.py").write_bytes(b"ours")
    (outside / "run.sh").write_bytes(b"ours")
    before = content(outside)
    (other.workspace / "src").symlink_to(outside)
    (other.workspace / "run.sh").symlink_to(outside / "run.sh")
    (other.workspace / "large").hardlink_to(outside / "run.sh")
    (other.workspace / "left" / "over").mkdir(parents=True)
    (other.workspace / "left" / "link").symlink_to(outside)
    os.mkfifo(other.session / "state")
    assert other.restore()[0] == 0
    assert content(other.workspace) == content(pod.workspace)
    assert content(other.session) == content(pod.session)
    assert content(outside) == before


def test_a_root_below_a_link_is_refused(pod: Pod, other: Pod, tmp_path: Path) -> None:
    pod.keeper().end()
    (tmp_path / "link").symlink_to(tmp_path)
    code, said = other.restore(roots={"workspace": f"{tmp_path}/link/new"})
    assert (code, said.partition(": [")[0]) == (1, "workspace: not_written")
    assert not (tmp_path / "new").exists()


def test_a_database_that_was_written_to_is_whole_again(pod: Pod, other: Pod) -> None:
    with writing(pod.session / "opencode.db") as writer:
        count = 0

        def write() -> None:
            nonlocal count
            count += 1
            writer.execute("begin")
            writer.do(INSERT + f"[({count}, at) for at in range(50)])")
            writer.execute("commit")

        with repeating(write):
            keeper = pod.keeper()
            while count < 20:
                assert keeper.step()["warnings"] == []
            at_least = count - 1
            assert keeper.end()["error"] is None
    assert other.restore()[0] == 0
    assert [each.name for each in other.session.iterdir()] == ["opencode.db"]
    with closing(sqlite3.connect(other.session / "opencode.db")) as read:
        assert read.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert read.execute("select count(*) from pairs group by a having count(*) <> 50").fetchall() == []
        assert read.execute("select max(a) from pairs").fetchone()[0] >= at_least


def test_what_was_killed_in_the_middle_is_completed(pod: Pod, other: Pod, service: Service) -> None:
    for number in range(60):
        (pod.workspace / f"file-{number}").write_bytes(os.urandom(BLOCK))
    pod.keeper().end()
    killed = threading.Event()

    def kill(path: str) -> None:
        if path == "read" and not killed.is_set() and len(list(other.workspace.iterdir())) > 5:
            process.kill()
            killed.set()

    process = other.restoring()
    service.before = kill
    assert process.wait(60) == -9
    assert 5 < len(list(other.workspace.iterdir())) < 60
    assert other.restore()[0] == 0
    assert content(other.workspace) == content(pod.workspace)


def test_a_store_that_is_away_is_waited_for_and_named(pod: Pod, other: Pod, service: Service) -> None:
    fill(pod)
    pod.keeper().end()
    service.away = True
    assert other.restore(retry_sec=0.3) == (1, "workspace: unavailable: HTTP 503: \n")

    def back(_: str) -> None:
        service.away = service.asked.total() < asked + 3

    asked, service.before = service.asked.total(), back
    assert other.restore(retry_sec=60)[0] == 0
    assert content(other.workspace) == content(pod.workspace)


def test_what_is_damaged_or_missing_is_named(pod: Pod, other: Pod, run: Run, service: Service) -> None:
    fill(pod)
    pod.keeper().end()
    number = max(run.ledger())
    assert other.restore(99) == (2, "workspace: no_workspace: nothing of this kind is stored for this run\n")
    assert other.restore(number, token="none")[1].startswith("workspace: token_refused: ")
    for file in (service.folder).rglob("blocks/*/*"):
        file.write_bytes(b"changed")
    code, said = other.restore(number)
    assert (code, said[:20]) == (2, "workspace: damaged: ")
    for file in (service.folder).rglob("blocks/*/*"):
        file.unlink()
    assert other.restore(number)[0] == 2
