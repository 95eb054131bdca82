"""How a run starts and ends: exit codes, signals, descendants, folders, full disks."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from agent_runs.logs.work import Work, process_names
from tests.pod.harness import RUN_TIMEOUT, SCRIPT, Runner, alive, children, slowed

STUBBORN = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
POLITE = "import sys, time; "
# Prints its pid in the awaited place, then lives as long as nobody ends it.
REPORT = "import os; print(os.getpid(), file=open(sys.argv[1], 'w')); time.sleep(1000)"


@pytest.mark.parametrize("code", [0, 1, 3, 125, 126, 127, 128, 255])
def test_the_exit_code_is_the_commands(runner: Runner, code: int) -> None:
    ended = runner.sh(f"exit {code}")
    assert (ended.code, ended.last.exit_code, ended.last.signal) == (code, code, None)
    assert ended.last.stopped_by is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
def test_a_signal_that_ends_the_command_is_reported(runner: Runner, number: signal.Signals) -> None:
    ended = runner.run(sys.executable, "-c", f"import os, signal; signal.signal({number}, 0) if {number} != 9 else 0; "
                       f"os.kill(os.getpid(), {number})")  # fmt: skip
    assert (ended.code, ended.last.exit_code, ended.last.signal) == (128 + number, 128 + number, number)
    assert (ended.last.stopped_by, ended.last.grace_exceeded) == (None, False)


def test_a_missing_command_is_reported(runner: Runner) -> None:
    ended = runner.run("no-such-command-anywhere")
    assert (ended.code, ended.last.exit_code, ended.last.error) == (127, 127, "command_not_found")


def test_a_file_that_cannot_be_executed_is_reported(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    ended = runner.run(str(tmp_path / "plain"))
    assert (ended.code, ended.last.error) == (126, "command_not_executable")


def test_a_prompt_of_1_mb_reaches_the_command(runner: Runner) -> None:
    prompt = b"prompt\0\xff " * 125_000
    code = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    assert runner.run(sys.executable, "-c", code, stdin=prompt).text("stdout") == [
        hashlib.sha256(prompt).hexdigest().encode()
    ]


def test_arguments_arrive_as_they_are(runner: Runner) -> None:
    arguments = ["", " ", "a b", "$HOME", "`id`", "'\"\\", "--", "-n", "*", "ä\n"]
    ended = runner.run(sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *arguments)
    assert ended.text("stdout") == [ascii(arguments).encode()]


def test_the_command_starts_in_its_folder_with_pwd_set_and_folders_made(runner: Runner, tmp_path: Path) -> None:
    places = ["HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"]
    runner.env = {name: str(tmp_path / "made" / name) for name in places}
    runner.env |= {"OPENCODE_DB": str(tmp_path / "made" / "db" / "opencode.db"), "PWD": "/elsewhere"}
    code = "import os; print(os.environ['PWD'], os.getcwd(), sep='|')"
    ended = runner.run(sys.executable, "-c", code)
    assert ended.text("stdout") == [f"{runner.work}|{runner.work}".encode()]
    assert {path.name for path in (tmp_path / "made").iterdir()} == {*places, "db"}
    assert list((tmp_path / "made" / "db").iterdir()) == []


@pytest.mark.parametrize(
    ("blocked", "error", "detail"),
    [
        ("work", "workdir", "--dir"),
        ("XDG_DATA_HOME", "folder", "XDG_DATA_HOME"),
        ("OPENCODE_DB", "folder", "OPENCODE_DB"),
    ],
)
def test_a_folder_that_cannot_be_created_is_reported(
    runner: Runner, tmp_path: Path, blocked: str, error: str, detail: str
) -> None:
    (tmp_path / blocked).write_text("a file where a folder should be")
    runner.env = {blocked: str(tmp_path / blocked / "db")} if blocked.isupper() else {}
    ended = runner.start("touch", str(tmp_path / "started")).end()
    assert (ended.code, ended.last.exit_code, ended.last.error, ended.last.detail) == (125, 125, error, detail)
    assert not (tmp_path / "started").exists()


def test_a_missing_prompt_is_reported(runner: Runner) -> None:
    assert runner.run("true", stdin=None).last.error == "stdin"


def test_wrong_arguments_end_with_64(runner: Runner) -> None:
    options = ["--out", "x", "--dir", "y", "--"]
    for arguments in (
        ["--nonsense"],
        ["--out", "x"],
        ["--grace", "1s", *options],
        ["--sidecar-timeout", "", *options],
    ):
        done = subprocess.run([*runner.argv("true")[: len(runner.shell) + 1], *arguments], capture_output=True)
        assert done.returncode == 64
        assert done.stderr.startswith(b"runner.sh: ")


class Tree:
    """Processes that report their pids through FIFOs, so that a test can await them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gates: list[Path] = []

    def process(self, kind: str) -> list[str]:
        """A command line of a process that reports and then stays."""
        gate = self._folder / f"gate-{len(self._gates)}"
        os.mkfifo(gate)
        self._gates.append(gate)
        return [sys.executable, "-c", kind + REPORT, str(gate)]

    def pids(self) -> list[int]:
        """Waits for every report."""
        return [int(gate.read_text()) for gate in self._gates]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def family(own: list[str], *tools: list[str], orphan: bool = False) -> list[str]:
    """A command that starts each tool in a session of its own, then becomes `own`.

    With `orphan` the tools' parent ends at once, so that they are nobody's children.
    """
    code = (
        "import os, subprocess, sys\n"
        f"for tool in {tools!r}:\n"
        f"    if {orphan} and os.fork(): continue\n"
        "    subprocess.Popen(tool, start_new_session=True)\n"
        f"    if {orphan}: os._exit(0)\n"
        f"own = {own!r}\n"
        "os.execv(own[0], own)\n"
    )
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_a_stop_ends_the_command_politely(runner: Runner, tree: Tree, name: str) -> None:
    runner.grace = RUN_TIMEOUT
    running = runner.start(*tree.process(POLITE))
    (pid,) = tree.pids()
    running.process.send_signal(signal.Signals[f"SIG{name}"])
    ended = running.end()
    assert (ended.code, ended.last.signal, ended.last.stopped_by) == (143, 15, name)
    assert (ended.last.grace_exceeded, ended.last.error) == (False, None)
    assert not alive(pid)


def test_a_stop_while_the_runner_starts_ends_the_command(runner: Runner, tree: Tree, tmp_path: Path) -> None:
    """On a busy machine the command may run before the runner has noted whom it started."""
    runner.script, runner.grace = slowed(SCRIPT, "    watcher=$!\n", tmp_path), RUN_TIMEOUT
    running = runner.start(*tree.process(POLITE))
    (pid,) = tree.pids()
    running.process.terminate()
    ended = running.end()
    assert (ended.code, ended.last.signal, ended.last.stopped_by) == (143, 15, "TERM")
    assert (ended.last.grace_exceeded, ended.last.error) == (False, None)
    assert not alive(pid)


def test_the_command_may_end_its_work_within_the_grace(runner: Runner, tree: Tree) -> None:
    runner.grace = RUN_TIMEOUT
    farewell = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (print('farewell'), sys.exit(5))); "
    running = runner.start(*tree.process(farewell))
    tree.pids()
    running.process.terminate()
    ended = running.end()
    assert ended.text("stdout") == [b"farewell"]
    assert (ended.code, ended.last.exit_code, ended.last.signal) == (5, 5, None)
    assert (ended.last.stopped_by, ended.last.grace_exceeded) == ("TERM", False)


def test_a_stop_ends_stubborn_descendants_in_sessions_of_their_own(runner: Runner, tree: Tree) -> None:
    command = family(
        tree.process(STUBBORN), tree.process(STUBBORN), family(tree.process(STUBBORN), tree.process(POLITE))
    )
    running = runner.start(*command)
    pids = tree.pids()
    running.process.terminate()
    ended = running.end()
    assert (ended.code, ended.last.signal, ended.last.grace_exceeded) == (137, 9, True)
    assert [pid for pid in pids if alive(pid)] == []


def test_a_stop_without_grace_kills(runner: Runner, tree: Tree) -> None:
    runner.grace = 0
    running = runner.start(*tree.process(STUBBORN))
    (pid,) = tree.pids()
    running.process.terminate()
    assert running.end().last.grace_exceeded
    assert not alive(pid)


def test_orphans_are_ended_by_a_stop(runner: Runner, tree: Tree) -> None:
    running = runner.start(*family(tree.process(POLITE), tree.process(STUBBORN), tree.process(POLITE), orphan=True))
    pids = tree.pids()
    running.process.terminate()
    ended = running.end()
    assert (ended.last.stopped_by, ended.last.grace_exceeded) == ("TERM", True)
    assert [pid for pid in pids if alive(pid)] == []


@pytest.mark.parametrize("kind", [POLITE, STUBBORN], ids=["polite", "stubborn"])
@pytest.mark.parametrize("orphan", [False, True], ids=["child", "orphan"])
def test_what_outlives_the_command_is_ended_and_the_code_stays(
    runner: Runner, tree: Tree, tmp_path: Path, kind: str, *, orphan: bool
) -> None:
    gate = tmp_path / "go"
    os.mkfifo(gate)
    own = [shutil.which("sh") or "", "-c", f"read -r _ <{gate}; exit 4"]
    running = runner.start(*family(own, tree.process(kind), orphan=orphan))
    (pid,) = tree.pids()
    gate.write_text("\n")
    ended = running.end()
    assert (ended.code, ended.last.exit_code, ended.last.error) == (4, 4, None)
    assert (ended.last.stopped_by, ended.last.grace_exceeded) == (None, False)
    assert not alive(pid)


def test_processes_of_other_runs_are_not_ended(runner: Runner, tmp_path: Path) -> None:
    theirs = Tree(tmp_path)
    neighbour = subprocess.Popen(theirs.process(POLITE), env=os.environ | {"AGENT_RUN_MARK": "another run"})
    try:
        (pid,) = theirs.pids()
        (tmp_path / "ours").mkdir()
        ours = Tree(tmp_path / "ours")
        running = runner.start(*ours.process(STUBBORN))
        ours.pids()
        running.process.terminate()
        running.end()
        assert alive(pid)
    finally:
        neighbour.kill()
        neighbour.wait()


def test_a_signal_to_the_whole_group_still_gives_every_frame(runner: Runner) -> None:
    running = runner.start("sh", "-c", "echo ready; exec sleep 1000", session=True)
    running.await_line("stdout")
    os.killpg(running.process.pid, signal.SIGTERM)
    assert running.end().last.stopped_by == "TERM"


def test_a_killed_watcher_ends_the_run_and_the_command(runner: Runner, tree: Tree) -> None:
    running = runner.start(*tree.process(POLITE))
    (pid,) = tree.pids()
    (watcher,) = [child for child in children(running.process.pid) if pid in children(child)]
    os.kill(watcher, signal.SIGKILL)
    ended = running.end()
    assert (ended.code, ended.last.exit_code, ended.last.stopped_by) == (137, 137, None)
    assert not alive(pid)


@pytest.mark.slow
def test_a_stop_before_a_stalled_reader_still_ends_the_agent(runner: Runner, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = runner.start("sh", "-c", f"head -c 3000000 /dev/zero; echo >{gate}; exec sleep 1000")
    gate.read_text()
    running.process.terminate()
    assert running.process.wait(timeout=RUN_TIMEOUT) == 143
    running.end()


def namespaced(*flags: str, needs: str) -> list[str]:
    """`unshare` with these flags where this machine allows it; else the test is skipped, saying so."""
    wrapper = ["unshare", *flags]
    if shutil.which("unshare") is None or subprocess.run([*wrapper, "true"], capture_output=True).returncode != 0:
        pytest.skip(f"this machine allows no {needs}")
    return wrapper


def test_a_full_disk_is_reported_and_what_fits_is_delivered(runner: Runner) -> None:
    namespaced("-Urm", needs="mounts in a user namespace")
    mount = 'mount -t tmpfs -o size=512k tmpfs "$0" && exec "$@"'
    runner.sidecar.wrapper = ["unshare", "-Urm", "sh", "-c", mount, str(runner.out)]
    sidecar = runner.sidecar.start()
    runner.started.append(sidecar)
    while not Path(f"/proc/{sidecar.pid}/root{runner.out}/ready").exists():
        pass
    runner.wrapper = ["nsenter", "-t", str(sidecar.pid), "-U", "-m", "--preserve-credentials"]
    program = "import os\nfor n in range(99999): os.write(1, b'%d' % n * 100 + b'\\n')"
    ended = runner.start(sys.executable, "-c", program, sidecar=sidecar).read_to_end()
    assert ended.code in {1, 120}  # Python ends with 120 when even its last output does not fit
    assert ended.last.error == "disk_full"
    assert ended.last.stdout.bytes == len(ended.raw("stdout")) > 300_000


NO_INOTIFY = 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"'


def test_where_no_inotify_instance_is_left_lines_still_come(runner: Runner, tmp_path: Path) -> None:
    namespaced("-Ur", needs="user namespaces")
    runner.sidecar.wrapper = ["unshare", "-Ur", "sh", "-c", NO_INOTIFY, "sh"]
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = runner.start("sh", "-c", f"echo first; read -r word <{gate}; echo $word")
    assert running.await_line("stdout") == b"first"
    descriptors = [str(each.readlink()) for each in Path(f"/proc/{running.sidecar.pid}/fd").iterdir()]
    assert "anon_inode:inotify" not in descriptors
    gate.write_text("second\n")
    assert running.end().text("stdout") == [b"first", b"second"]


def test_as_pid_1_the_runner_reaps_and_ends_everything(runner: Runner, tmp_path: Path) -> None:
    runner.wrapper = namespaced("-Urpf", "--mount-proc", "--kill-child", needs="pid namespaces")
    (tmp_path / "tools").mkdir()
    tools = Tree(tmp_path / "tools")
    report = "import os; print('pid', os.getpid(), flush=True); "
    command = family(tools.process(POLITE + report), tools.process(STUBBORN), orphan=True)
    running = runner.start(*command)
    assert running.await_line("stdout") != b"pid 1"
    tools.pids()
    os.kill(children(running.process.pid)[0], signal.SIGTERM)
    ended = running.end()
    assert (ended.last.exit_code, ended.last.stopped_by, ended.last.grace_exceeded) == (143, "TERM", True)


def test_busybox_stands_in_for_tools_that_the_container_lacks(runner: Runner, tmp_path: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox here")
    runner.shell = [shutil.which(runner.shell[0]) or "", *runner.shell[1:]]
    runner.env = {"PATH": str(tmp_path), "RUNNER_BUSYBOX": busybox}
    ended = runner.run(sys.executable, "-c", "print('x' * 20000); print('nul \\0')")
    assert ended.text("stdout") == [b"x" * 20000, b"nul \0"]
    assert ended.last.error is None


WORKING = """
import subprocess, sys, time
def stat(child): return open(f"/proc/{child.pid}/stat").read().rpartition(") ")[2].split()
idle = subprocess.Popen(["sleep", "1000"])
busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
name = "open('/proc/self/comm', 'w').write(') R 1' + chr(10) + '2'); print(flush=True); input()"
odd = subprocess.Popen([sys.executable, "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
odd.stdout.readline()
while int(stat(busy)[11]) < 30: time.sleep(0.01)
print(idle.pid, busy.pid, flush=True)
time.sleep(1000)
"""


def test_what_the_processes_do_is_listed_by_their_age_and_cpu_time(runner: Runner) -> None:
    running = runner.start(sys.executable, "-c", WORKING)
    idle, busy = (int(pid) for pid in running.await_line("stdout").split())
    listing = subprocess.run([*runner.shell, SCRIPT, "--out", runner.out, "--work"], capture_output=True)
    work = Work.parse(listing.stdout)
    assert work is not None, listing
    assert work.processes[idle].cpu <= timedelta(seconds=0.1)
    assert work.processes[busy].cpu >= timedelta(seconds=0.2)
    assert min(work.processes[pid].began for pid in (idle, busy)) >= timedelta()
    assert b"sleep" in process_names(listing.stdout)
    assert len(work.processes) <= 3  # neither the command itself, nor what waits for it
    running.process.terminate()
    running.end()
