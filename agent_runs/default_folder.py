"""The folder of the files that a program makes for itself on a developer's machine: keys, and the transcript store."""

from pathlib import Path
from typing import Final

DEFAULT_FOLDER: Final = Path.home() / ".agent-runs"


def has_folder(file: Path) -> bool:
    """Whether the file's folder is there. Only the default one is made: another that is missing is mostly misspelt."""
    if file.parent == DEFAULT_FOLDER:
        file.parent.mkdir(exist_ok=True, mode=0o700)
    return file.parent.is_dir()
