"""`serve.sh` under every shell of this machine, with a program in the server's place."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.pod.harness import SCRIPT, SHELLS, slowed

SERVE = SCRIPT.with_name("serve.sh")


@pytest.mark.parametrize("line", ["(serve ", "    read -r pid _ "])
@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_an_order_to_end_that_comes_before_the_server_has_started_ends_it(
    shell: str, line: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    os.mkfifo(out / "orders")
    (out / "ready").write_text("ready password\n")
    (tmp_path / "opencode").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "opencode").chmod(0o700)
    script = slowed(SERVE, line, tmp_path)
    with subprocess.Popen([*SHELLS[shell], str(script), str(out), str(tmp_path / "opencode")]) as process:
        try:
            with (out / "orders").open("w") as orders:
                orders.write("end 143\n")
            assert process.wait(timeout=30) == 143
        finally:
            process.kill()
