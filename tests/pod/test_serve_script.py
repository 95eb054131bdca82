"""`serve.sh` under every shell of this machine, with a program in the server's place."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.pod.harness import SCRIPT, SHELLS, end_session, slowed

SERVE = SCRIPT.with_name("serve.sh")


@pytest.mark.parametrize(("order", "code"), [("end 143", 143), ("run", 7)])
@pytest.mark.parametrize("line", ["(serve ", "    read -r pid _ "])
@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_an_order_that_comes_before_the_server_has_started_ends_it(
    shell: str, line: str, order: str, code: int, tmp_path: Path
) -> None:
    out, program = tmp_path / "out", tmp_path / "opencode"
    out.mkdir()
    os.mkfifo(out / "orders")
    (out / "ready").write_text("ready password\n")
    program.write_text('#!/bin/sh\n[ "$1" != serve ] || exec sleep 600\nexit 7\n')
    program.chmod(0o700)
    command = [*SHELLS[shell], str(slowed(SERVE, line, tmp_path)), str(out), str(program), "run"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        with (out / "orders").open("w") as orders:
            orders.write(order + "\n")
        assert process.wait(timeout=30) == code
    finally:
        end_session(process)
