"""The process that takes checkpoints."""

import os
import select
import shutil
import signal
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from agent_runs.pod.sidecar.workspace.scan import BLOCK
from agent_runs.workspace.tree import digest
from tests.pod.workspace.pods import Keeper, Pod
from tests.pod.workspace.service import Run, Service


def test_a_checkpoint_follows_a_step_and_the_last_one_the_end(pod: Pod, run: Run) -> None:
    keeper = pod.keeper()
    (pod.workspace / "a").write_bytes(b"one")
    assert keeper.step(3) == {"number": 1, "steps": 3, "bytes": 3, "error": None, "warnings": []}
    (pod.workspace / "a").write_bytes(b"two")
    os.mkfifo(pod.workspace / "fifo")
    warnings = ["workspace/fifo: left out: it is no file, folder or link"]
    assert keeper.end(4) == {"number": 2, "steps": 4, "bytes": 3, "error": None, "warnings": warnings}
    ledger = run.ledger()
    assert [(each.kind, each.steps, each.session) for each in ledger.values()] == [
        ("checkpoint", 3, "ses_1"),
        ("end", 4, "ses_1"),
    ]
    assert [run.tree(number)["workspace/a"]["blocks"] for number in ledger] == [[digest(b"one")], [digest(b"two")]]
    assert list(pod.control.iterdir()) == []


def test_nothing_is_sent_where_nothing_has_changed(pod: Pod, service: Service) -> None:
    (pod.workspace / "a").write_bytes(b"one")
    (pod.session / "b").write_bytes(b"two")
    keeper = pod.keeper()
    assert keeper.step(1)["bytes"] == 6
    asked = service.asked.copy()
    assert (keeper.step(2)["number"], keeper.step(3)["number"]) == (1, 1)
    assert service.asked == asked
    (pod.workspace / "c").write_bytes(b"three")
    assert keeper.step(4)["bytes"] == 5
    assert keeper.end()["bytes"] == 0


def test_checkpoints_keep_their_distance_and_the_end_waits_for_none(pod: Pod, run: Run) -> None:
    keeper = pod.keeper(interval=1000)
    assert keeper.step(1)["steps"] == 1
    keeper.tell(*(f"step {number} ses_1" for number in range(2, 50)))
    (pod.workspace / "a").write_bytes(b"one")
    assert keeper.end(50)["number"] == 2
    assert [each.steps for each in run.ledger().values()] == [1, 50]


def test_steps_that_come_together_are_one_checkpoint(pod: Pod, run: Run) -> None:
    keeper = pod.keeper(interval=0.3)
    keeper.step(1)
    (pod.workspace / "a").write_bytes(b"one")
    keeper.tell(*(f"step {number} ses_1" for number in range(2, 50)))
    assert keeper.line()["steps"] == 49
    keeper.end(49)
    assert [each.steps for each in run.ledger().values()] == [1, 49, 49]


def test_a_store_that_is_away_is_tried_until_it_is_back(pod: Pod, service: Service) -> None:
    (pod.workspace / "a").write_bytes(b"one")
    keeper, back = pod.keeper(), threading.Event()
    service.away = True

    def before(_: str) -> None:
        if service.asked.total() == 3:
            service.away = False
            back.set()

    service.before = before
    assert keeper.step(1)["error"] is None
    assert back.is_set()
    assert keeper.end()["error"] is None


def test_the_next_step_ends_the_tries_of_the_one_before(pod: Pod, service: Service) -> None:
    (pod.workspace / "a").write_bytes(b"one")
    keeper, asked = pod.keeper(), threading.Event()
    service.away, service.before = True, lambda _: asked.set()
    keeper.tell("step 1 ses_1")
    assert asked.wait(10)
    keeper.tell("step 2 ses_1")
    line = keeper.line()
    assert (line["number"], line["error"]["code"]) == (0, "unavailable")
    service.away = False
    line = keeper.line()
    assert (line["number"], line["steps"], line["error"]) == (1, 2, None)


def test_the_last_one_is_tried_for_a_limited_time(pod: Pod, service: Service) -> None:
    keeper = pod.keeper(retry_sec=0.5)
    (pod.workspace / "a").write_bytes(b"one")
    keeper.step(1)
    (pod.workspace / "a").write_bytes(b"two")
    service.away = True
    began = time.monotonic()
    line = keeper.end(2)
    assert time.monotonic() - began < 10
    assert (line["number"], line["steps"]) == (1, 1)
    assert line["error"] == {"code": "unavailable", "message": "HTTP 503: "}


def test_a_service_that_cannot_be_reached_is_named(pod: Pod) -> None:
    error = pod.keeper(retry_sec=0.2, url="http://127.0.0.1:1").end()["error"]
    assert (error["code"], error["message"].partition(":")[0]) == ("unavailable", "ConnectionRefusedError")


def test_a_pod_of_an_earlier_attempt_stops_for_ever(pod: Pod, run: Run, service: Service, tmp_path: Path) -> None:
    keeper = pod.keeper()
    keeper.step(1)
    later = Run(service, run.key, attempt=2)
    Pod(later, tmp_path / "later").keeper().end()
    (pod.workspace / "a").write_bytes(b"one")
    assert keeper.step(2)["error"]["code"] == "fenced"
    asked = service.asked.copy()
    assert keeper.step(3)["error"]["code"] == "fenced"
    line = keeper.end()
    assert (line["number"], line["error"]["code"]) == (1, "fenced")
    assert service.asked == asked
    assert [each.attempt for each in run.ledger().values()] == [1, 2]


def test_a_token_that_is_refused_is_named(pod: Pod) -> None:
    assert pod.keeper(token="none").end()["error"]["code"] == "token_refused"


def test_what_cannot_be_read_stays_as_the_pod_began_with_it(pod: Pod, other: Pod, run: Run) -> None:
    for name in ("folder/a", "b", "gone"):
        (pod.workspace / name).parent.mkdir(exist_ok=True)
        (pod.workspace / name).write_bytes(name.encode())
    pod.keeper().end()
    before = run.tree()
    assert other.restore()[0] == 0
    shutil.rmtree(other.workspace / "folder")
    (other.workspace / "b").unlink()
    (other.workspace / "gone").unlink()
    os.mkfifo(other.workspace / "folder")
    os.mkfifo(other.workspace / "b")
    line = other.keeper().step()
    after = run.tree()
    assert line["error"] is None
    assert line["warnings"] == [
        f"workspace/{name}: as it was before: it is no file, folder or link" for name in ("b", "folder")
    ]
    assert {path: entry for path, entry in before.items() if path != "workspace/gone"} == after


def test_blocks_that_the_store_has_lost_are_sent_again(pod: Pod, run: Run, service: Service) -> None:
    (pod.workspace / "a").write_bytes(b"one")
    keeper = pod.keeper()
    keeper.step(1)
    for folder in ("blocks", "trees"):
        for file in service.folder.rglob(f"{folder}/**/*"):
            if file.is_file():
                file.unlink()
    (pod.workspace / "b").write_bytes(b"two")
    line = keeper.step(2)
    assert (line["number"], line["bytes"], line["error"]) == (2, 6, None)
    assert run.tree()["workspace/a"]["blocks"] == [digest(b"one")]
    assert pod.restore()[0] == 0


def test_a_file_that_changes_while_it_is_sent_is_sent_as_it_was_read(pod: Pod, run: Run, service: Service) -> None:
    file, versions = pod.workspace / "a", list[bytes]()

    def change(path: str) -> None:
        if path == "missing":  # after the scan, before the blocks are read again
            versions.append(b"%d" % len(versions) * (BLOCK + 9))
            file.write_bytes(versions[-1])

    change("missing")
    service.before = change
    keeper = pod.keeper()
    line = keeper.step(1)
    assert (line["number"], line["error"], line["warnings"]) == (1, None, [])
    carried = run.tree()["workspace/a"]
    assert carried["blocks"] in [[digest(each[:BLOCK]), digest(each[BLOCK:])] for each in versions]
    assert carried["size"] == BLOCK + 9
    keeper.end()
    assert pod.restore()[0] == 0


def test_a_large_file_that_changes_all_the_time_stays_as_it_was(pod: Pod, run: Run, service: Service) -> None:
    file, size, changes = pod.workspace / "large", 65 * BLOCK, 0
    file.write_bytes(bytes(size))

    def change(path: str) -> None:
        nonlocal changes
        if path == "missing":
            changes += 1
            file.write_bytes(b"%d" % changes + bytes(size))

    keeper = pod.keeper()
    keeper.step(1)
    before = run.tree()["workspace/large"]
    service.before = change
    (pod.workspace / "b").write_bytes(b"two")
    file.write_bytes(b"x" + bytes(size))
    line = keeper.step(2)
    assert (line["error"], line["warnings"]) == (None, ["workspace/large: as it was before: it changes all the time"])
    assert run.tree()["workspace/large"] == before
    assert run.tree()["workspace/b"]["size"] == 3
    service.before = lambda _: None
    keeper.end()
    assert run.tree()["workspace/large"] != before


def test_a_file_that_is_deleted_while_it_is_sent_is_not_there(pod: Pod, run: Run, service: Service) -> None:
    (pod.workspace / "a").write_bytes(b"one")
    (pod.workspace / "b").write_bytes(b"two")
    service.before = lambda path: (pod.workspace / "a").unlink(missing_ok=True) if path == "missing" else None
    assert pod.keeper().step(1)["error"] is None
    assert set(run.tree()) == {"workspace", "workspace/b", "session", "session/opencode"}


def test_many_databases_are_all_sent(pod: Pod) -> None:
    for number in range(40):
        with closing(sqlite3.connect(pod.session / f"{number}.db")) as made:
            made.execute(f"create table pairs_{number} (a integer)")
    line = pod.keeper().end()
    assert (line["error"], line["warnings"]) == (None, [])
    assert pod.restore()[0] == 0
    for number in range(40):
        with closing(sqlite3.connect(pod.session / f"{number}.db")) as read:
            assert read.execute("select name from sqlite_master").fetchall() == [(f"pairs_{number}",)]


def test_a_killed_keeper_leaves_whole_checkpoints(pod: Pod, run: Run, service: Service) -> None:
    (pod.workspace / "a").write_bytes(b"one")
    keeper = pod.keeper()
    keeper.step(1)
    (pod.workspace / "large").write_bytes(os.urandom(20 * BLOCK))
    killed = threading.Event()

    def kill(path: str) -> None:
        if path == "blocks" and not killed.is_set():
            keeper.process.kill()
            killed.set()

    service.before = kill
    keeper.tell("step 2 ses_1")
    assert killed.wait(20)
    keeper.process.wait()
    assert set(run.ledger()) == {1}
    line = pod.keeper().end(2)
    assert (line["number"], line["error"]) == (2, None)
    assert run.tree()["workspace/large"]["size"] == 20 * BLOCK


def test_its_line_is_short_whatever_the_agent_does(pod: Pod) -> None:
    for number in range(300):
        os.mkfifo(pod.workspace / f"{number:03}{'é' * 120}")
    keeper = pod.keeper()
    keeper.tell("end 1 " + "s" * 200)
    assert keeper.process.stdout
    line = keeper.process.stdout.readline()
    assert len(line) < 4096
    assert b"left out" in line


def test_a_step_that_ends_while_the_folders_are_read_is_whole_in_the_checkpoint(pod: Pod, run: Run) -> None:
    with (pod.workspace / "large").open("wb") as large:
        large.truncate(1000 * BLOCK)
    keeper = pod.keeper()
    while not is_read(pod.workspace / "large", keeper):  # it may have been faster than this process
        pass
    keeper.process.send_signal(signal.SIGSTOP)
    (pod.session / "a").write_bytes(b"two")  # which was read before
    (pod.workspace / "z").write_bytes(b"two")
    keeper.tell("step 2 ses_1")
    keeper.process.send_signal(signal.SIGCONT)
    assert keeper.line()["steps"] == 2
    record = list(run.ledger().values())[-1]
    assert {"session/opencode/a", "workspace/z"} < set(run.tree(max(run.ledger())))
    assert record.steps == 2


def is_read(file: Path, keeper: Keeper) -> bool:
    """Begins a checkpoint; true when it reads this file, false when it has ended before that was seen."""
    os.utime(file)
    keeper.tell("step 1 ses_1")
    assert keeper.process.stdout
    while not has_open(keeper.process.pid, file):
        if select.select([keeper.process.stdout], [], [], 0)[0]:
            keeper.line()
            return False
    return True


def has_open(process: int, file: Path) -> bool:
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if link.samefile(file):
                return True
    return False
