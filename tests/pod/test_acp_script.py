"""`acp.sh` under every shell of this machine, and with the real runner and sidecar."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pod.acp import CAPTURES, PLAYER, PROFILES, SCRIPT, acp_turn
from tests.pod.harness import SHELLS, Runner, children, end_session, slowed

GEMINI = ".gemini/tmp/work/chats"


class Script:
    """`acp.sh` with a program, as the sidecar has it started."""

    def __init__(self, shell: list[str], folder: Path) -> None:
        self.shell, self.folder, self.path = shell, folder, SCRIPT
        self.out, self.home, self.secret = (folder / name for name in ("out", "home", "secret"))
        for each in (self.out, self.home, self.secret):
            each.mkdir()
        for name in ("input", "orders"):
            os.mkfifo(self.out / name)
        (self.out / "protocol").touch()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, cwd: str | None = None, **variables: str) -> subprocess.Popen[bytes]:
        known = {"HOME": str(self.home), "AGENT_RUN_SECRET": str(self.secret)}
        process = subprocess.Popen(
            [*self.shell, str(self.path), str(self.out), *command],
            env=os.environ | known | variables,
            cwd=cwd,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def order(self, text: str) -> None:
        with (self.out / "orders").open("w") as orders:
            orders.write(text + "\n")

    def run(self, *command: str, order: str = "end 0", **variables: str) -> int:
        """The exit code, after an order that comes when the program has ended by itself."""
        process = self.start(*command, **variables)
        self.await_file("ended")
        self.order(order)
        return process.wait(timeout=60)

    def await_text(self, name: str, text: str) -> None:
        self.await_file(name)
        end = time.monotonic() + 60
        while (self.out / name).read_text() != text:
            assert time.monotonic() < end, f"{name}: {(self.out / name).read_text()}"
            time.sleep(0.01)

    def await_file(self, name: str) -> Path:
        end = time.monotonic() + 60
        while not (self.out / name).exists():
            assert time.monotonic() < end, f"no {name}"
            time.sleep(0.01)
        return self.out / name


@pytest.fixture(params=sorted(SHELLS))
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Script]:
    script = Script(SHELLS[request.param], tmp_path)
    yield script
    for process in script.processes:
        end_session(process)


@pytest.mark.parametrize(("own", "order", "code"), [(3, 1, 3), (0, 1, 1), (3, 0, 0), (0, 143, 143), (0, 0, 0)])
def test_the_exit_code_is_the_ordered_one_or_the_programs_own(script: Script, own: int, order: int, code: int) -> None:
    assert script.run("sh", "-c", f"exit {own}", order=f"end {order}") == code
    assert (script.out / "ended").read_text() == f"{own}\n"


def test_the_program_gets_its_input_until_the_order_to_end(script: Script) -> None:
    process = script.start("sh", "-c", "trap '' TERM; while read -r line; do echo got $line; done; echo at the end")
    for word in ("one", "two"):  # a writer that goes away is no end of the input
        with (script.out / "input").open("w") as writing:
            writing.write(word + "\n")
    protocol = script.out / "protocol"
    while protocol.read_text() != "got one\ngot two\n":
        time.sleep(0.01)
    assert not (script.out / "ended").exists()
    script.order("end 0")
    assert process.wait(timeout=60) == 0
    assert protocol.read_text() == "got one\ngot two\nat the end\n"


def test_a_program_that_ignores_sigterm_is_killed(script: Script) -> None:
    process = script.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    while (script.out / "protocol").read_text() != "ready\n":
        time.sleep(0.01)
    (program,) = [pid for pid in children(process.pid) if pid == int((script.out / "program.pid").read_text())]
    script.order("end 143")
    assert process.wait(timeout=60) == 143
    assert not Path(f"/proc/{program}").exists()


def test_a_pod_that_rests_has_no_program_and_gives_the_next_one_the_variables_of_its_run(script: Script) -> None:
    says = ("sh", "-c", "echo ${RUN-none} ${TASK-none}; read -r line; echo $line")
    process = script.start(*says, RUN="one", TASK="a")
    script.await_text("protocol", "one a\n")
    script.order("rest a-word 60")
    assert process.wait(timeout=60) == 0
    assert (script.out / "rests").read_text() == "a-word 60\n"
    assert not (script.out / "idle").exists()
    waiting = script.start(*says, RUN="one", TASK="a")
    script.await_text("idle", "a-word\n")
    (script.out / "environment").write_text("export RUN='tw o'\nunset TASK\n")
    (script.out / "protocol").write_text("")
    (script.out / "input").unlink()
    os.mkfifo(script.out / "input")
    script.order("run")
    script.await_text("protocol", "tw o none\n")
    with (script.out / "input").open("w") as writing:
        writing.write("more\n")
    script.await_text("protocol", "tw o none\nmore\n")
    script.await_file("ended")
    script.order("end 0")
    assert waiting.wait(timeout=60) == 0
    assert not (script.out / "rests").exists()


def test_a_workspace_that_was_replaced_while_the_pod_rested_is_the_one_of_now(script: Script) -> None:
    work = script.folder / "work"
    work.mkdir()
    (script.out / "rests").write_text("a-word 60\n")
    process = script.start("cat", "new", cwd=str(work), PWD=str(work))
    while not children(process.pid):  # it waits, with a limit
        time.sleep(0.01)
    work.rename(script.folder / "old")
    work.mkdir()
    (work / "new").write_text("file\n")
    (script.out / "environment").write_text("")
    script.order("run")
    script.await_text("protocol", "file\n")
    script.await_file("ended")
    script.order("end 0")
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(("order", "code"), [("end 0", 0), ("end 143", 143)])
def test_a_rest_ends_by_an_order(script: Script, order: str, code: int) -> None:
    (script.out / "rests").write_text("a-word 60\n")
    process = script.start("touch", str(script.folder / "began"))
    script.order(order)
    assert process.wait(timeout=60) == code
    assert not (script.out / "rests").exists()
    assert not (script.folder / "began").exists()


def test_a_rest_ends_by_itself_if_its_sidecar_does_not_end_it(script: Script) -> None:
    (script.out / "rests").write_text("a-word 1\n")
    assert script.start("touch", str(script.folder / "began")).wait(timeout=60) == 0
    assert not (script.folder / "began").exists()


def test_a_mark_that_the_program_has_made_is_no_rest(script: Script) -> None:
    assert script.run("touch", str(script.out / "rests")) == 0
    assert not (script.out / "rests").exists()


def test_an_order_to_end_that_comes_at_once_ends_the_program(script: Script) -> None:
    assert script.run("true") == 0  # its number is still in a file
    (script.out / "rests").write_text("a-word 60\n")
    process = script.start("sleep", "600")
    (script.out / "environment").write_text("")
    script.order("run\nend 0")
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("line", ["(run ", "    read -r pid _ "])
def test_an_order_to_end_that_comes_before_the_program_has_started_ends_it(script: Script, line: str) -> None:
    script.path = slowed(SCRIPT, line, script.folder)
    process = script.start("sleep", "600")
    script.order("end 143")
    assert process.wait(timeout=60) == 143


def test_files_of_the_secret_are_where_the_profile_wants_them(script: Script) -> None:
    (script.secret / "one").write_text("a = $HOME\n")
    (script.secret / "two").write_text("{}")
    elsewhere = script.folder / "else where"
    targets = {"one": "$HOME/.codex/config.toml", "two": f"{elsewhere}/settings.json"}
    bad = {"../one": "$HOME/up", "none": "$HOME/none", "one": "$(touch x)/one"}
    lines = [f"{key}\t{target}\n" for each in (bad, targets) for key, target in each.items()]
    (script.secret / "agent-files").write_text("".join(lines))
    assert script.run("sh", "-c", "cat $HOME/.codex/config.toml") == 0
    assert (script.out / "protocol").read_text() == "a = $HOME\n"
    assert (elsewhere / "settings.json").read_text() == "{}"
    assert (script.home / ".codex/config.toml").stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in script.home.iterdir()) == [".codex", "none"]


def test_skills_are_links_where_the_agent_looks_for_them_and_those_of_earlier_runs_go(script: Script) -> None:
    folder = script.home / ".claude" / "skills"
    (folder / "own").mkdir(parents=True)
    (folder / "own-link").symlink_to("/elsewhere/own-link")
    (folder / "earlier").symlink_to("/paperclip/instances/default/skills/co/earlier")
    (folder / "other place").symlink_to("/paperclip/instances/default/skills/co/other")
    (folder / "paperclip").symlink_to("/agent-run/skills/paperclip")
    skills = "/paperclip/instances/default/skills/co"
    listed = {"deploy": f"{skills}/de ploy", "own": f"{skills}/own", "earlier": f"{skills}/new"}
    lines = [".claude/skills\n", *(f"{name}\t{path}\n" for name, path in listed.items())]
    (script.secret / "agent-skills").write_text("".join(lines))
    assert script.run("true") == 0
    links = {each.name: str(each.readlink()) for each in folder.iterdir() if each.is_symlink()}
    assert links == {"own-link": "/elsewhere/own-link", "deploy": f"{skills}/de ploy", "earlier": f"{skills}/new"}
    assert list((folder / "own").iterdir()) == []


def test_the_newest_file_of_the_session_is_copied(script: Script) -> None:
    for age, name in enumerate(("new-s1", "old-s1", "newest-s2")):
        file = script.home / "a b" / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
        os.utime(file, (1000 - age, 1000 - age if age < 2 else 2000))
    script.start("sleep", "60")
    script.order("copy s1 a b/*.jsonl")
    assert script.await_file("usage").read_text() == "new-s1"
    (script.out / "usage").unlink()
    script.order("copy s3 a b/*.jsonl")
    assert script.await_file("usage").read_text() == ""
    script.order("end 0")


def test_geminis_sessions_are_one_file_each_whose_name_no_start_chooses(script: Script) -> None:
    chats = script.home / GEMINI
    chats.mkdir(parents=True)
    sizes = {"2026-11-24T23-02-aaaaaaaa": 9, "2026-11-24T23-03-aaaaaaaa": 2, "2026-11-24T23-03-bbbbbbbb": 3}
    for name, size in sizes.items():
        (chats / f"session-{name}.jsonl").write_text("x" * size)
    for _ in range(2):
        (script.out / "ended").unlink(missing_ok=True)
        (script.out / "order").unlink(missing_ok=True)
        assert script.run("true", AGENT_RUN_PREPARE="gemini_sessions") == 0
    found = {file.name: file.stat().st_size for file in chats.iterdir()}
    kept = "session-2000-01-01T00-00-"
    assert found == {f"{kept}aaaaaaaa.jsonl": 9, f"{kept}bbbbbbbb.jsonl": 3}


def test_a_turn_comes_through_runner_and_sidecar(tmp_path: Path) -> None:
    runner = Runner(["sh"], tmp_path, options=["--serve", str(SCRIPT)])
    runner.sidecar.turn = tmp_path / "turn.json"
    runner.sidecar.turn.write_text(json.dumps(acp_turn(runner.work, PROFILES["claude"], text="greet")))
    capture = CAPTURES / "claude" / "tool-bash.jsonl"
    try:
        ended = runner.start(sys.executable, "-I", "-S", str(PLAYER), str(capture)).read_to_end()
    finally:
        runner.clean_up()
    assert (ended.code, ended.last.error) == (0, None)
    kinds = [json.loads(line)["type"] for line in ended.text("stdout")]
    assert [kind for kind in kinds if kind != "acp_update"] == [
        *("agent_version", "session_status", "step_start", "tool_running", "tool_use", "step_finish"),
        *("step_start", "text", "step_finish", "session_status"),
    ]
