"""Commands that people repeat load no library that they do not use: each costs a tenth of a second or more."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.client import Client

UNUSED = {
    "listing": ("run_list", ("sqlalchemy", "joserfc", "cryptography", "markdown_it", "yaml", "opentelemetry")),
    "show": ("runs", ("sqlalchemy", "joserfc", "cryptography", "markdown_it", "yaml", "opentelemetry")),
}


@pytest.mark.parametrize("command", UNUSED)
def test_a_command_loads_only_what_it_needs(command: str) -> None:
    module, unused = UNUSED[command]
    code = f"import sys; from agent_runs.cli import main; main.{module}."
    code += f"{command}; print(*(name for name in {unused!r} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []


def test_a_module_that_is_loaded_late_is_in_its_package_as_any_other() -> None:
    code = "import agent_runs.client; from agent_runs.cli.lazy import lazy; lazy('agent_runs.client.attach')"
    subprocess.run([sys.executable, "-c", f"{code}; agent_runs.client.attach.attach"], check=True)


@pytest.mark.slow
async def test_no_command_aborts_at_its_end(temporal: Client) -> None:
    address = temporal.service_client.config.target_host
    program = Path(sys.executable).with_name("agent-runs")
    for _ in range(12):  # without any precaution one in four aborts
        process = await asyncio.create_subprocess_exec(
            *(program, "list", "--json", "--agent", "nobody"),
            env={**os.environ, "TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": temporal.namespace},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert (*await process.communicate(), process.returncode) == (b"", b"", 0)
