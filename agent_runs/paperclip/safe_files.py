"""Reads files that an agent's configuration names; nothing else may read them.

The worker has files that agents must not see (its sealing key, its ServiceAccount's token), and agents can write to the
data volume: plant links, and exchange folders while they are read. So a file is opened first, and what is judged is
where the opened file is, not its path. The plugin reads by the same rules, `adapter/src/safe-files.ts`.
"""

import os
import platform
import stat
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Without waiting, so that a named pipe cannot hold the worker. Links may be followed: the opened file is judged."""

_LINUX: Final = platform.system() == "Linux"


class UnreadableFile(ValueError):
    """A file that cannot be read. The message names it and the cause, never its content."""


@dataclass(frozen=True)
class OwnFiles:
    """The files on the data volume that are an agent's own: its instructions, and its company's skills.

    Source of the folders: Paperclip 2026.916.1, `agent-instructions.js` and `company-skills.js`.

    Attributes:
        root: Paperclip's home, as this process sees it.
    """

    root: Path
    company_id: str
    agent_id: str

    def instructions(self, path: Path, limit: int) -> str:
        """The text of a file of the agent's instructions, of `limit` bytes at most; see `_read`."""
        return self._read(path, limit, ("companies", self.company_id, "agents", self.agent_id, "instructions"))

    def skill(self, path: Path, limit: int) -> str:
        """The same for a skill of its company; Paperclip imports them from the company's projects, too."""
        return self._read(path, limit, ("skills", self.company_id), ("projects", self.company_id))

    def _read(self, path: Path, limit: int, *folders: tuple[str, ...]) -> str:
        """The UTF-8 text of the regular file at `path`, without a byte order mark.

        Raises:
            UnreadableFile: missing, not below one of `folders` of one of Paperclip's instances, not a regular file,
                larger than `limit`, or not UTF-8.
        """
        if "\0" in str(path):
            raise UnreadableFile("a path with a NUL character")
        try:
            with os.fdopen(os.open(path, _FLAGS), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise UnreadableFile(f"{path}: not a regular file")
                if reason := self._refusal(_location(file.fileno(), path), found.st_nlink, folders):
                    raise UnreadableFile(f"{path}: {reason}")
                content = file.read(limit + 1)
        except OSError as error:
            raise UnreadableFile(f"{path}: {error.strerror}") from None
        if len(content) > limit:
            raise UnreadableFile(f"{path}: larger than {limit} bytes")
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UnreadableFile(f"{path}: not UTF-8") from None

    def _refusal(self, location: PurePath, links: int, folders: tuple[tuple[str, ...], ...]) -> str | None:
        """Why the file at `location`, with so many hard links, must not get into this agent's prompt."""
        # agents may replace a folder on the volume by a link, so none below the root is resolved
        instances = PurePath(self.root.resolve(), "instances")
        inside = location.relative_to(instances).parts[1:] if location.is_relative_to(instances) else ()
        if not any(inside[: len(folder)] == folder for folder in folders):
            return "leads out of this agent's own folders"
        if location.name.startswith(".env"):
            return "leads to keys or logins"
        return "has several names, of which one may be another's file" if links > 1 else None


def is_folder(path: Path) -> bool:
    """Whether a folder is at `path`; False without permission to see it."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _location(descriptor: int, path: Path) -> PurePath:
    """Where the opened file is. Only Linux says so; elsewhere its path is resolved, which a rename can deceive."""
    return Path(f"/proc/self/fd/{descriptor}").readlink() if _LINUX else path.resolve()
