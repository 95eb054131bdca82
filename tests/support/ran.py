"""What the tests have run: a line for each program and version, for `dev_stack.compatibility_page`."""

import os
import subprocess
from pathlib import Path
from typing import Final

FILE: Final = "TEST_RAN"
"""The variable with the file; without it nothing is noted."""


def note_ran(program: str, version: str) -> None:
    """Note that the tests which follow have this program, or those before had it."""
    if file := os.environ.get(FILE):
        with Path(file).open("a") as notes:
            notes.write(f"{program}\t{version}\n")


def note_temporal(program: str) -> None:
    """The same of the server in Temporal's own command line."""
    if FILE in os.environ:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        note_ran("Temporal Server", said.partition("(Server ")[2].partition(",")[0])
