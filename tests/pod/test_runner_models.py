"""The list of models that OpenCode starts with: a part of its own where that is enough, else all of it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dev_stack.opencode_binary import ensure_opencode
from dev_stack.plan import cache_folder
from tests.pod.harness import Runner

READ = 'cat "${OPENCODE_MODELS_PATH:-/dev/null}"'
SIZE = 60_000_000  # bytes of a program that may be Bun's


@pytest.fixture
async def models(runner: Runner, tmp_path: Path) -> Path:
    """The file that takes the list's place. `opencode` is the real one, in a pod that has nothing of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "opencode").symlink_to(await ensure_opencode(cache_folder() / "opencode"))
    (tmp_path / "home").mkdir()
    runner.env |= {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}
    models = tmp_path / "models.json"
    runner.options += ["--models", str(models)]
    return models


def read(runner: Runner, *listed: str) -> dict[str, Any] | None:
    """The list that a command finds in the place of OpenCode's own; None: it finds none."""
    runner.options += [word for name in listed for word in ("--listed", name)]
    ended = runner.sh(READ)
    assert (ended.code, ended.last.error, ended.text("stderr")) == (0, None, [])
    text = ended.raw("stdout")
    return json.loads(text) if text else None


def replace_opencode(models: Path, text: str, size: int = 0) -> Path:
    """Put a program in the place of OpenCode. Returns the file that it makes if it is started."""
    program, started = models.with_name("bin") / "opencode", models.with_name("started")
    program.unlink()
    program.write_text(f"#!/bin/sh\n: > {started}\n{text}\n")
    program.chmod(0o755)
    os.truncate(program, max(size, program.stat().st_size))
    return started


@pytest.mark.usefixtures("models")
def test_the_first_start_of_a_pod_has_the_providers_that_the_run_can_use(runner: Runner) -> None:
    found = read(runner, "anthropic", "amazon-bedrock")
    assert found is not None
    assert found.keys() == {"anthropic", "amazon-bedrock"}
    assert found["anthropic"]["env"] == ["ANTHROPIC_API_KEY"]
    assert found["anthropic"]["models"]["claude-haiku-4-5"]["limit"] == {"context": 200_000, "output": 64_000}


@pytest.mark.usefixtures("models")
def test_a_run_that_needs_no_provider_of_the_list_has_an_empty_one(runner: Runner) -> None:
    assert read(runner) == {}


def test_without_the_option_the_list_is_left_alone(runner: Runner, models: Path) -> None:
    runner.options = []
    assert read(runner) is None
    assert not models.exists()


@pytest.mark.usefixtures("models")
def test_a_provider_that_is_not_in_the_list_leaves_it_whole(runner: Runner) -> None:
    assert read(runner, "anthropic", "nobody") is None


@pytest.mark.parametrize("name", ["OPENCODE_CONFIG_CONTENT", "OPENCODE_CONFIG_DIR", "OPENCODE_MODELS_PATH"])
def test_a_variable_that_may_name_other_providers_leaves_it_whole(runner: Runner, models: Path, name: str) -> None:
    runner.env[name] = "/dev/null"
    assert read(runner, "anthropic") is None
    assert not models.exists()


@pytest.mark.usefixtures("models")
def test_a_configuration_in_the_agents_home_leaves_it_whole(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "home/.opencode").mkdir()
    assert read(runner, "anthropic") is None


def test_a_folder_that_cannot_be_written_leaves_it_whole(runner: Runner, models: Path) -> None:
    models.mkdir()
    assert read(runner, "anthropic") is None


@pytest.mark.parametrize("size", [0, SIZE])
def test_a_program_without_a_list_leaves_it_whole(runner: Runner, models: Path, size: int) -> None:
    started = replace_opencode(models, "echo '{' > \"$2\"; exit 1", size)
    assert read(runner, "anthropic") is None
    assert started.exists() is bool(size)  # a script is no program of Bun's, and is not started


def test_without_opencode_the_run_fails_as_before(runner: Runner, models: Path) -> None:
    (models.with_name("bin") / "opencode").unlink()
    runner.env["PATH"] = "/usr/bin:/bin"
    runner.options += ["--listed", "anthropic"]
    assert runner.run("opencode", "run").last.error == "command_not_found"


def test_what_reads_the_list_has_nothing_of_the_run(runner: Runner, models: Path) -> None:
    runner.env["ANTHROPIC_API_KEY"] = "sk-ant-secret"
    replace_opencode(models, 'tr "\\0" "\\n" < /proc/$$/environ > "$2.seen"; pwd >> "$2.seen"; exit 1', SIZE)
    assert read(runner, "anthropic") is None
    seen = models.with_name("models.json.seen").read_text().split()
    scripts = str(runner.script.parent)
    assert set(seen) - {"_=/usr/bin/env"} <= {f"HOME={scripts}", "BUN_BE_BUN=1", f"PWD={scripts}", scripts}


@pytest.mark.usefixtures("models")
def test_nothing_in_a_home_or_a_working_directory_takes_part(runner: Runner, tmp_path: Path) -> None:
    preload = tmp_path / "preload.js"
    preload.write_text(f"require('fs').writeFileSync('{tmp_path}/preloaded', '')")
    for name in ("bunfig.toml", ".bunfig.toml"):
        (tmp_path / "home" / name).write_text(f'preload = ["{preload}"]')
    runner.wrapper = ["env", "-C", str(tmp_path / "home")]
    assert read(runner, "anthropic") is not None
    assert not (tmp_path / "preloaded").exists()
