"""The sidecar as one file that any python3 runs: an archive of its modules and of h11, always the same bytes."""

import io
import marshal
import zipfile
from functools import cache
from importlib.metadata import distribution
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import Final

import h11

_PACKAGE: Final = Path(__file__).parent.parent
_H11: Final = Path(h11.__file__).parent
_START: Final = """import sys
command, *arguments = sys.argv[1:]
if command == "run":
    from agent_runs.pod.sidecar.main import main
    main(*arguments)
elif command == "keep":
    from agent_runs.pod.sidecar.workspace.keeper import main
    main(*arguments)
elif command == "restore":
    from agent_runs.pod.sidecar.workspace.restore import main
    main(*arguments)
else:
    from agent_runs.pod.sidecar.commands import main
    main(command, *arguments)
"""
_DATE: Final = (2026, 1, 1, 0, 0, 0)
_UNCHECKED: Final = 1
"""Flag of a compiled module that nobody compares with its source (PEP 552)."""
_MARSHAL: Final = 2
"""The last version whose bytes do not depend on how often an object is referred to."""


@cache
def sidecar_archive() -> bytes:
    """Return the archive.

    Each module is in it compiled, too, for a sidecar whose Python is of the worker's version; another one compiles the
    source, as it would without. That is most of the CPU time of a command of the sidecar.
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as writing:
        packages = (_PACKAGE / "__init__.py", _PACKAGE / "pod" / "__init__.py")
        for module in (*packages, *sorted((_PACKAGE / "pod" / "sidecar").rglob("*.py"))):
            _add_module(writing, f"agent_runs/{module.relative_to(_PACKAGE).as_posix()}", module.read_text())
        for module in sorted(_H11.glob("*.py")):
            _add_module(writing, f"h11/{module.name}", module.read_text())
        _add(writing, "h11/LICENSE.txt", _license().encode())
        _add_module(writing, "__main__.py", _START)
    return archive.getvalue()


def _add_module(archive: zipfile.ZipFile, name: str, source: str) -> None:
    _add(archive, name, source.encode())
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    header = MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + source_hash(source.encode())
    _add(archive, f"{name}c", header + marshal.dumps(code, _MARSHAL))


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)


def _license() -> str:
    """Return h11's licence, which every copy of it must have."""
    return distribution("h11").read_text("licenses/LICENSE.txt") or ""
