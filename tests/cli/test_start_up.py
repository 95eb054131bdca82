"""Commands that people repeat load no library that they do not use: each costs a tenth of a second or more."""

import subprocess
import sys

import pytest

UNUSED = {
    "listing": ("fleet", ("sqlalchemy", "joserfc", "cryptography", "markdown_it", "yaml", "opentelemetry")),
    "show": ("runs", ("sqlalchemy", "joserfc", "cryptography", "markdown_it", "yaml", "opentelemetry")),
    "parse": ("parse", ("sqlalchemy", "joserfc", "cryptography", "markdown_it", "temporalio.client")),
}


@pytest.mark.parametrize("command", UNUSED)
def test_a_command_loads_only_what_it_needs(command: str) -> None:
    module, unused = UNUSED[command]
    code = f"import sys; from agent_runs.cli import main; main.{'parse_command' if command == 'parse' else module}."
    code += f"{command}; print(*(name for name in {unused!r} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
