"""OpenCode is found or installed once, says plainly why it cannot be had, and runs against the scripted model."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dev_stack.npm import npm_command
from dev_stack.opencode_binary import OVERRIDE, Machine, OpenCodeUnavailable, ensure_opencode, package_name
from dev_stack.scripted_model import provider_block, serve

PROJECT = Path(__file__).parents[2]
PACKAGE = package_name(Machine.this())

WORKING_NPM = f"""#!/bin/sh
echo call >> "$NPM_CALLS"
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/{PACKAGE}/bin"
printf '#!/bin/sh\\necho 1.0.0\\n' > "$2/node_modules/{PACKAGE}/bin/opencode"
chmod +x "$2/node_modules/{PACKAGE}/bin/opencode"
"""


@pytest.fixture
def npm(npm_on_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for npm; write a script into it."""
    npm_on_path.write_text(WORKING_NPM)
    monkeypatch.delenv(OVERRIDE, raising=False)
    return npm_on_path


def becomes(npm: Path, script: str) -> None:
    npm.write_text(script)


def calls(npm: Path) -> int:
    log = npm.with_name("calls")
    return log.read_text().count("call") if log.exists() else 0


def left_behind(cache: Path) -> list[str]:
    return sorted(entry.name for entry in cache.iterdir() if not entry.name.endswith(".lock"))


BUILDS = {
    Machine("Linux", "x86_64", avx2=True): "opencode-linux-x64",
    Machine("Linux", "x86_64", avx2=False): "opencode-linux-x64-baseline",
    Machine("Linux", "x86_64", musl=True, avx2=True): "opencode-linux-x64-musl",
    Machine("Linux", "x86_64", musl=True): "opencode-linux-x64-baseline-musl",
    Machine("Linux", "aarch64"): "opencode-linux-arm64",
    Machine("Linux", "aarch64", musl=True): "opencode-linux-arm64-musl",
    Machine("Darwin", "arm64"): "opencode-darwin-arm64",
    Machine("Darwin", "x86_64"): "opencode-darwin-x64-baseline",
}


def test_each_machine_gets_the_build_that_runs_on_it() -> None:
    assert {machine: package_name(machine) for machine in BUILDS} == BUILDS


def test_a_machine_without_a_build_is_refused() -> None:
    for machine in (Machine("Windows", "AMD64"), Machine("Linux", "riscv64")):
        with pytest.raises(OpenCodeUnavailable, match=f"no OpenCode for {machine.system} on {machine.machine}"):
            package_name(machine)


async def test_many_callers_install_once(npm: Path, tmp_path: Path) -> None:
    found = await asyncio.gather(*(ensure_opencode(tmp_path / "cache", "1.0.0") for _ in range(5)))
    second = await ensure_opencode(tmp_path / "cache", "1.0.0")
    assert len({*found, second}) == 1
    assert os.access(second, os.X_OK)
    assert calls(npm) == 1
    assert left_behind(tmp_path / "cache") == ["1.0.0"]


async def test_callers_in_other_processes_wait_as_well(npm: Path, tmp_path: Path) -> None:
    script = (
        "import asyncio; from pathlib import Path; from dev_stack.opencode_binary import ensure_opencode;"
        f"print(asyncio.run(ensure_opencode(Path({str(tmp_path / 'cache')!r}), '1.0.0')))"
    )

    async def in_a_process() -> str:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, cwd=PROJECT, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await child.communicate()
        return output.decode().strip()

    found = await asyncio.gather(*(in_a_process() for _ in range(3)))
    assert set(found) == {str(await ensure_opencode(tmp_path / "cache", "1.0.0"))}
    assert calls(npm) == 1


async def test_a_damaged_installation_is_replaced(npm: Path, tmp_path: Path) -> None:
    (tmp_path / "cache" / "1.0.0" / "node_modules").mkdir(parents=True)
    (tmp_path / "cache" / ".1.0.0-killed").mkdir()
    assert os.access(await ensure_opencode(tmp_path / "cache", "1.0.0"), os.X_OK)
    assert calls(npm) == 1
    assert left_behind(tmp_path / "cache") == ["1.0.0"]


async def test_a_failed_download_names_the_remedy_and_leaves_nothing(npm: Path, tmp_path: Path) -> None:
    becomes(
        npm,
        "#!/bin/sh\necho 'npm error code ECONNREFUSED' >&2\necho 'npm error FetchError: request failed' >&2\n"
        "echo 'npm error     at ClientRequest.emit' >&2\nexit 1\n",
    )
    with pytest.raises(OpenCodeUnavailable) as raised:
        await ensure_opencode(tmp_path / "cache", "1.0.0")
    message = str(raised.value)
    assert f"npm could not install {PACKAGE}@1.0.0 (exit 1): code ECONNREFUSED; FetchError: request failed\n" in message
    assert "ClientRequest" not in message
    for remedy in ("network", "registry", f"{OVERRIDE}=/path/to/opencode"):
        assert remedy in message
    assert left_behind(tmp_path / "cache") == []
    becomes(npm, WORKING_NPM)
    assert await ensure_opencode(tmp_path / "cache", "1.0.0")


async def test_an_unreachable_registry_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    with pytest.raises(OpenCodeUnavailable, match=r"npm could not install .*ECONNREFUSED"):
        await ensure_opencode(tmp_path / "cache")


async def test_a_binary_that_does_not_run_is_not_kept(npm: Path, tmp_path: Path) -> None:
    becomes(npm, WORKING_NPM.replace("echo 1.0.0", "echo Illegal instruction; exit 132"))
    with pytest.raises(OpenCodeUnavailable, match="ended with 132: Illegal instruction"):
        await ensure_opencode(tmp_path / "cache", "1.0.0")
    assert left_behind(tmp_path / "cache") == []


async def test_a_folder_that_cannot_be_written_is_named(npm: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OpenCodeUnavailable, match=r"cannot be installed into .*file/cache"):
        await ensure_opencode(tmp_path / "file" / "cache", "1.0.0")
    assert calls(npm) == 0


async def test_a_cancelled_installation_ends_npm_and_leaves_nothing(npm: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    becomes(npm, f"#!/bin/sh\necho $$ > {started}\nexec sleep 600\n")
    installing = asyncio.create_task(ensure_opencode(tmp_path / "cache", "1.0.0"))
    pid = int(await asyncio.to_thread(started.read_text))
    installing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await installing
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert left_behind(tmp_path / "cache") == []


async def test_the_binary_of_the_environment_is_used_and_checked(
    npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, str(npm))
    assert await ensure_opencode(tmp_path / "cache") == npm
    monkeypatch.setenv(OVERRIDE, str(tmp_path / "absent"))
    with pytest.raises(OpenCodeUnavailable, match=f"{OVERRIDE} names .*absent, which is no executable file"):
        await ensure_opencode(tmp_path / "cache")


def test_npm_comes_from_pypi_when_the_machine_has_none() -> None:
    command = npm_command({"PATH": "/nowhere"})
    output = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    assert int(output.split(".")[0]) >= 10


async def test_the_real_opencode_plays_a_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)
    opencode = await ensure_opencode()
    workspace, events = tmp_path / "workspace", tmp_path / "events"
    workspace.mkdir()
    (tmp_path / "prompt").write_text("Say hello.\n")
    async with serve() as model:
        (tmp_path / "opencode.json").write_text(json.dumps(opencode_config(model.base_url)))
        run = ["run", "--format", "json", "-m", "fake/scenario/tool-bash", "--title", "test", "--dir", str(workspace)]
        with (tmp_path / "prompt").open("rb") as prompt, events.open("wb") as out:  # never a pipe: it loses output
            process = await asyncio.create_subprocess_exec(
                opencode,
                *run,
                stdin=prompt,
                stdout=out,
                stderr=asyncio.subprocess.PIPE,
                cwd=workspace,
                env=offline(tmp_path, workspace),
            )
            _, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode(errors="replace")
    assert "Say hello." in model.requests[-1]["messages"][1]["content"]
    written = [json.loads(line) for line in events.read_bytes().splitlines()]
    kinds = [event["type"] for event in written]
    assert kinds == ["step_start", "tool_use", "step_finish", "step_start", "text", "step_finish"]
    assert written[1]["part"]["state"]["output"] == "hello-from-bash\n"
    assert written[4]["part"]["text"] == "The command printed its greeting."
    assert written[5]["part"]["reason"] == "stop"


def opencode_config(base_url: str) -> dict[str, Any]:
    """An `opencode.json` that uses only the scripted model."""
    return {
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["fake"],
        "small_model": "fake/aux/title",
        "lsp": False,
        "formatter": False,
        "provider": provider_block(base_url),
    }


def offline(home: Path, workspace: Path) -> dict[str, str]:
    """An environment in which OpenCode touches neither the network nor anything outside `home`."""
    switches = ("AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "MODELS_FETCH", "PROJECT_CONFIG")
    return {f"OPENCODE_DISABLE_{switch}": "1" for switch in switches} | {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "PWD": str(workspace),
        "OPENCODE_CONFIG": str(home / "opencode.json"),
        "OPENCODE_PURE": "1",
    }
