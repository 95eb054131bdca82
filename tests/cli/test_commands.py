"""The commands as people start them: real processes, no servers."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_runs.client.run_list import RunFilter
from agent_runs.client.settings import ClientSettings
from agent_runs.client.workspaces import open_workspaces
from agent_runs.contracts.identity import RunKey
from agent_runs.paperclip.sealing import PublicKey, load_or_create
from agent_runs.transcript.tokens import Tokens
from dev_stack.demo import context
from tests.support.ports import HOST, free_port
from tests.support.process_pool import commands

PROGRAM = Path(sys.executable).with_name("agent-runs")
COMMANDS = [
    *("start", "logs", "show", "list", "top", "cancel", "replay", "transcripts"),
    *("revoke-links", "sealing-key", "keys", "doctor", "worker", "completion"),
]


INSTALLED: list[str | Path] = [PROGRAM]
STACK: list[str | Path] = [sys.executable, "-m", "dev_stack"]


def run(*arguments: str, program: Sequence[str | Path] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of `agent-runs`, or `program`, in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_RUNS_")}
    if not program:
        return commands().run(arguments, {**inherited, **environment})
    return subprocess.run(
        [*program, *arguments], capture_output=True, text=True, timeout=120, env={**inherited, **environment}
    )


def nobody_listens() -> str:
    """An address on which nothing listens."""
    return f"{HOST}:{free_port()}"


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "TEMPORAL_ADDRESS": nobody_listens(),
        "AGENT_RUNS_SEALING_KEY_FILE": str(tmp_path / "key.json"),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    helped = run(command, "--help")
    assert helped.returncode == 0
    assert "Example:" in helped.stdout


@pytest.mark.parametrize("command", ["demo", "dev", "cluster"])
def test_every_command_of_the_stack_has_help_with_an_example(command: str) -> None:
    helped = run(command, "--help", program=STACK)
    assert helped.returncode == 0
    assert "Example: ./dev" in helped.stdout


def test_a_missing_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    refused(run("start", "--context", str(tmp_path / "none.json")), "none.json: No such file or directory")


def test_an_unreachable_temporal_is_one_line_with_the_remedy(settings: dict[str, str]) -> None:
    refused(run("show", "some-run", **settings), "TEMPORAL_ADDRESS")


def test_logs_without_a_store_names_what_is_missing_and_creates_nothing(
    settings: dict[str, str], tmp_path: Path
) -> None:
    result = run("logs", "some-run", **settings)
    assert (result.returncode, result.stdout, list(tmp_path.iterdir())) == (1, "", [])
    assert len(result.stderr.splitlines()) == 1
    for name in ("AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL", "AGENT_RUNS_TRANSCRIPTS_KEY_FILE", "AGENT_RUNS_TRANSCRIPTS_URL"):
        assert name in result.stderr


def test_a_context_that_lacks_fields_names_each_and_the_remedy(tmp_path: Path, settings: dict[str, str]) -> None:
    load_or_create(Path(settings["AGENT_RUNS_SEALING_KEY_FILE"]))
    raw = context()
    raw["config"]["model"] = "gpt-without-provider"
    del raw["agent"]["id"]
    file = tmp_path / "context.json"
    file.write_text(json.dumps(raw))
    result = run("start", "--context", str(file), **settings)
    refused(result, "agent.id is missing")
    assert "config.model must be '<provider>/<model>'" in result.stderr


def test_what_is_wrong_comes_first_without_a_second_remedy_and_then_the_warnings(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    load_or_create(Path(settings["AGENT_RUNS_SEALING_KEY_FILE"]))
    raw = context()
    raw["config"] |= {"timeoutSec": "soon", "color": "red"}
    file = tmp_path / "context.json"
    file.write_text(json.dumps(raw))
    problem, warning = run("start", "--context", str(file), **settings).stderr.split(" Warnings: ")
    assert problem == "agent-runs: config.timeoutSec must be a whole number."
    assert warning.startswith("config.color is not known and has no effect: remove it, or see docs/configuration.md")
    assert "Correct" not in warning


def test_a_misspelt_setting_is_named() -> None:
    refused(run("list", AGENT_RUNS_TASK_QEUE="x"), "AGENT_RUNS_TASK_QEUE")


def test_a_real_cluster_needs_an_image(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    result = run("demo", "--kubeconfig", str(file), "--state", str(tmp_path / "state"), program=STACK)
    refused(result, "--kubeconfig needs --image")


def test_an_unusable_kubeconfig_is_named(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    arguments = ("demo", "--kubeconfig", str(file), "--image", "x", "--state", str(tmp_path / "s"))
    refused(run(*arguments, program=STACK), str(file))


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    with subprocess.Popen(
        [PROGRAM, "keys"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.close()
        assert writer.stderr.read() == ""
    assert writer.returncode == 141


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"AGENT_RUNS_TASKQUEUE": "x"}, "AGENT_RUNS_TASKQUEUE: no such setting; did you mean AGENT_RUNS_TASK_QUEUE?"),
        ({"TEMPORAL_ADRESS": "x"}, "TEMPORAL_ADRESS: no such variable; did you mean TEMPORAL_ADDRESS?"),
        ({"TEMPORAL_ADDRESS": "here:99999"}, "TEMPORAL_ADDRESS: must be HOST:PORT with a port from 1 to 65535"),
        ({"AGENT_RUNS_TRANSCRIPTS_LISTEN": "127.0.0.1:99999"}, "with a port up to 65535, such as 127.0.0.1:8090"),
    ],
    ids=["setting", "Temporal's variable", "port", "listen port"],
)
def test_a_wrong_setting_is_one_line_with_what_was_meant(environment: dict[str, str], message: str) -> None:
    result = run("list", **environment)
    refused(result, message)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("list",), ("list", "--no-such-option"), ("show",)])
def test_with_json_an_error_is_one_object_on_stdout(arguments: tuple[str, ...], settings: dict[str, str]) -> None:
    result = run(*arguments, "--json", **settings)
    error = json.loads(result.stdout)
    assert (error["type"], error["exitCode"], result.returncode) == ("error", 2, 2)
    assert error["message"]
    assert result.stderr == ""


def test_an_error_of_the_program_itself_is_one_line_and_its_traceback_one_variable_away(tmp_path: Path) -> None:
    folder = tmp_path / "context.json"
    folder.write_text("{}")
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import agent_runs.cli.runs as r\ndef start(*_, **__): raise KeyError('CANARY')\nr.start = start\n"
    )
    hidden = run("start", "--context", str(folder), program=INSTALLED, PYTHONPATH=str(tmp_path))
    assert (hidden.returncode, hidden.stdout) == (70, "")
    assert hidden.stderr == (
        "agent-runs: an error of agent-runs itself (KeyError). Run the command again with AGENT_RUNS_TRACEBACK=1 and "
        "report what it shows\n"
    )
    shown = run(
        "start", "--context", str(folder), program=INSTALLED, PYTHONPATH=str(tmp_path), AGENT_RUNS_TRACEBACK="1"
    )
    assert "Traceback" in shown.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert run("--version").stdout == f"agent-runs {version('agent-runs')}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str) -> None:
    assert "_AGENT_RUNS_COMPLETE" in run("completion", shell).stdout
    asked = {"_AGENT_RUNS_COMPLETE": f"complete_{shell}", "COMP_WORDS": "agent-runs sh", "COMP_CWORD": "1"}
    asked |= {"_TYPER_COMPLETE_ARGS": "agent-runs sh", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert "show" in run(program=INSTALLED, **asked).stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [("--phase fail", "failed"), ("--phase timed", "timed-out"), ("--failure provider_q", "provider_quota")],
)
def test_a_shell_completes_phases_and_failures_as_the_command_takes_them(words: str, expected: str) -> None:
    asked = {"_AGENT_RUNS_COMPLETE": "complete_bash", "COMP_WORDS": f"agent-runs list {words}", "COMP_CWORD": "3"}
    assert run(program=INSTALLED, **asked).stdout.split() == [expected]
    option, _, _ = words.partition(" ")
    assert getattr(RunFilter.parse({option[2:]: expected}), option[2:]) == expected.replace("-", " ")


def refused(result: subprocess.CompletedProcess[str], message: str) -> None:
    assert result.returncode == 2, result
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_callers_get_only_the_public_sealing_key(settings: dict[str, str]) -> None:
    load_or_create(Path(settings["AGENT_RUNS_SEALING_KEY_FILE"]))
    printed = run("sealing-key", **settings)
    assert printed.returncode == 0
    public = json.loads(printed.stdout)
    own = json.loads(Path(settings["AGENT_RUNS_SEALING_KEY_FILE"]).read_text())
    assert {"kid", "crv", "kty", "x", "y"} == public.keys()
    assert own["d"] not in printed.stdout + printed.stderr
    assert (public["x"], public["y"]) == (own["x"], own["y"])


def test_a_caller_creates_no_sealing_key_because_no_worker_could_open_what_it_seals(
    settings: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "context.json"
    file.write_text(json.dumps(context()))
    for command in (("sealing-key",), ("start", "--context", str(file)), ("tell", "some-run", "text")):
        refused(run(*command, **settings), "AGENT_RUNS_SEALING_KEY_FILE")
        assert not Path(settings["AGENT_RUNS_SEALING_KEY_FILE"]).exists()


def test_an_interrupt_while_modules_are_imported_is_one_line_and_exit_code_130() -> None:
    code = """
import os, signal, sys
from agent_runs.cli import entry
class Interrupting:
    def find_spec(self, name, *_):
        if name == "agent_runs.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
entry.main()
"""
    ended = run(program=(sys.executable, "-c", code))
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "agent-runs: interrupted\n")


def test_a_full_disk_is_named_and_no_error_of_the_program() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([PROGRAM, "keys"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "no space is left where the output is written" in ended.stderr


def manifests(*arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Secret and the ConfigMap that `keys` prints."""
    printed = run("keys", *arguments)
    assert (printed.returncode, printed.stderr) == (0, "")
    secret, public = yaml.safe_load_all(printed.stdout)
    return secret, public


def test_keys_prints_what_a_worker_and_its_callers_mount(tmp_path: Path) -> None:
    secret, public = manifests("--namespace", "team")
    assert (secret["kind"], secret["metadata"]) == ("Secret", {"name": "agent-runs-keys", "namespace": "team"})
    assert public["metadata"] == {"name": "agent-runs-public-key", "namespace": "team"}
    for name, text in secret["stringData"].items():
        (tmp_path / name).write_text(text)
    [key] = load_or_create(tmp_path / "sealing-key.json", create=False)
    assert PublicKey.from_jwk(public["data"]["sealing-key.json"]).kid == key.kid
    assert "d" not in json.loads(public["data"]["sealing-key.json"])
    tokens = Tokens.load(tmp_path / "transcripts-key.json", create=False)
    assert tokens.open(tokens.mint(RunKey.named("ada~run"))).run.name == "ada~run"


def test_new_keys_keep_the_old_ones_so_that_open_runs_and_links_still_open(tmp_path: Path) -> None:
    before, _ = manifests()
    data = {name: base64.b64encode(text.encode()).decode() for name, text in before["stringData"].items()}
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({"data": data}))
    after, public = manifests("--previous", str(tmp_path / "old.yaml"))
    workspaces = "workspace-key.json"
    assert after["stringData"].pop(workspaces) == before["stringData"][workspaces]  # what is stored has one key
    for name, text in after["stringData"].items():
        [new, old] = json.loads(text)["keys"]
        assert [old] == json.loads(before["stringData"][name])["keys"]
        assert new != old
    first = json.loads(after["stringData"]["sealing-key.json"])["keys"][0]
    assert json.loads(public["data"]["sealing-key.json"])["x"] == first["x"]


def test_a_secret_without_a_key_for_workspaces_gets_one(tmp_path: Path) -> None:
    before, _ = manifests()
    data = {name: base64.b64encode(text.encode()).decode() for name, text in before["stringData"].items()}
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({"data": {**data, "workspace-key.json": None}}))
    refused(run("keys", "--previous", str(tmp_path / "old.yaml")), "kubectl get secret agent-runs-keys -o yaml")
    del data["workspace-key.json"]
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({"data": data}))
    after, _ = manifests("--previous", str(tmp_path / "old.yaml"))
    (tmp_path / "new.json").write_text(after["stringData"]["workspace-key.json"])
    store = ClientSettings(workspace_store=f"file://{tmp_path}/store", workspace_key_file=tmp_path / "new.json")
    assert open_workspaces(store) is not None


def test_keys_refuses_what_is_not_its_secret(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("data: {}")
    refused(run("keys", "--previous", str(tmp_path / "old.yaml")), "kubectl get secret agent-runs-keys -o yaml")


def test_the_public_key_is_all_that_a_workstation_needs(settings: dict[str, str]) -> None:
    _, public = manifests()
    Path(settings["AGENT_RUNS_SEALING_KEY_FILE"]).write_text(public["data"]["sealing-key.json"])
    printed = run("sealing-key", AGENT_RUNS_PRODUCTION="true", **settings)
    assert json.loads(printed.stdout)["x"] == json.loads(public["data"]["sealing-key.json"])["x"]
    context_file = Path(settings["AGENT_RUNS_SEALING_KEY_FILE"]).with_name("context.json")
    context_file.write_text(json.dumps(context("text", "agent")))
    started = run("start", "--context", str(context_file), AGENT_RUNS_PRODUCTION="true", **settings)
    refused(started, "TEMPORAL_ADDRESS")
