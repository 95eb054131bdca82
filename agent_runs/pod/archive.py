"""The sidecar as one file that any python3 runs: an archive of its modules and of h11, always the same bytes."""

import io
import zipfile
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import h11

_PACKAGE: Final = Path(__file__).parent.parent
_MODULES: Final = ("__init__.py", "pod/__init__.py", *(f"pod/sidecar/{name}.py" for name in (
    *("__init__", "api_proxy", "connection", "control", "encoding", "main", "output", "requests", "runner", "serving"),
    *("tokens", "upstream", "watching", "driver/__init__", "driver/drive", "driver/growth", "driver/identifiers"),
    *("driver/lines", "driver/record", "driver/server", "driver/stream", "driver/turn", "driver/waiting"),
    *("driver/wire", "acp/__init__", "acp/agent", "acp/drive", "acp/mapping", "acp/messages", "acp/turn", "acp/usage"),
)))  # fmt: skip
_H11: Final = Path(h11.__file__).parent
_START: Final = "import sys\nfrom agent_runs.pod.sidecar.main import main\nmain(sys.argv[1:])\n"
_DATE: Final = (2026, 1, 1, 0, 0, 0)


@cache
def sidecar_archive() -> bytes:
    """Return the archive. It is not compressed, because a smaller file would start more slowly."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writing:
        for name in _MODULES:
            writing.writestr(zipfile.ZipInfo(f"agent_runs/{name}", _DATE), (_PACKAGE / name).read_text())
        for module in sorted(_H11.glob("*.py")):
            writing.writestr(zipfile.ZipInfo(f"h11/{module.name}", _DATE), module.read_text())
        writing.writestr(zipfile.ZipInfo("h11/LICENSE.txt", _DATE), _license())
        writing.writestr(zipfile.ZipInfo("__main__.py", _DATE), _START)
    return archive.getvalue()


def _license() -> str:
    """Return h11's licence, which every copy of it must have."""
    return distribution("h11").read_text("licenses/LICENSE.txt") or ""
