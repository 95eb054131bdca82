"""What an agent's pod gets of the data volume: folders of its own, not the volume.

An agent gets its workspace, its home, the database of its task, and Paperclip's own folder for it; and, read-only, its
instructions, its company's skills and what the operator's policy shares. All agents have one user id on the volume, so
what is not mounted is what protects one from another. Pure: paths only, nothing is opened.

Folders of Paperclip (source: Paperclip 2026.916.1, `home-paths.js`, `agent-instructions.js`, `workspace-runtime.js`),
below `instances/INSTANCE` of its home: `workspaces/AGENT`, `projects/COMPANY/PROJECT/REPOSITORY`,
`companies/COMPANY/agents/AGENT/instructions`, `skills/COMPANY`. A git worktree is in `.paperclip/worktrees/BRANCH` of
its repository unless a project says otherwise, and its `.git` is a file that names a folder of the repository.
"""

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from agent_runs.contracts.pod import DATA_DIRECTORY, HOME_DIRECTORY
from agent_runs.contracts.request import Workspace

DATABASES: Final = ".opencode-db"
HOMES: Final = ".agent-homes"

_WORKTREES: Final = "/.paperclip/worktrees/"
_FOLDER_LIMIT: Final = 128
_DIGEST_LENGTH: Final = 16
_DIGEST: Final = re.compile(rf"-[0-9a-f]{{{_DIGEST_LENGTH}}}$")


@dataclass(frozen=True)
class DataRules:
    """What the operator's policy says about the data volume.

    Attributes:
        whole: agents get all of it, and may change what is another one's.
        workspaces: patterns of workspaces outside of Paperclip's own folders, relative to the volume.
        shared: folders, relative to the volume, that every agent may read.
    """

    whole: bool = False
    workspaces: tuple[str, ...] = ("*",)
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Owner:
    """Whose folders a run may have. Without an agent's id, as in a test of a configuration, those of any agent."""

    company_id: str
    agent_id: str | None


@dataclass(frozen=True)
class Folder:
    """A folder of the data volume in the agent's container.

    Attributes:
        sub_path: relative to the volume, without `.` and `..`.
        mount_path: in the container.
    """

    sub_path: str
    mount_path: str
    read_only: bool = False

    @classmethod
    def at_its_path(cls, sub_path: str, *, read_only: bool = False) -> "Folder":
        """A folder whose path in the container is the one that Paperclip has for it."""
        return cls(sub_path, f"{DATA_DIRECTORY}/{sub_path}", read_only)

    def has(self, other: "Folder") -> bool:
        """Whether the other one need not be mounted besides this one."""
        inside = f"{other.mount_path}/".startswith(f"{self.mount_path}/")
        return inside and (other.read_only or not self.read_only)


@dataclass(frozen=True)
class RunFolders:
    """The paths that a run names, as Paperclip and its agent's configuration spell them.

    Attributes:
        directory: where OpenCode works.
        projects: the paths of all workspaces of the run's project.
        instructions: the file of the agent's instructions.
        skills: the folders of its skills.
    """

    owner: Owner
    directory: str
    workspace: Workspace = field(default_factory=Workspace)
    projects: Sequence[str] = ()
    instructions: str | None = None
    skills: Sequence[str] = ()

    @property
    def workspace_field(self) -> str | None:
        """The field that names the directory; None when none does, so that OpenCode works in the agent's home."""
        if self.workspace.cwd:
            return "paperclipWorkspace.cwd"
        return "cwd" if self.directory != HOME_DIRECTORY else None

    def mounted(self, rules: DataRules) -> tuple[Folder, ...]:
        """The folders that the agent gets besides its database; refused ones are not among them."""
        own = [Folder(home_path(self.owner), HOME_DIRECTORY)]
        if rules.whole:
            return tuple(own)
        writable = [Folder.at_its_path(path) for path in self._writable(rules)]
        read_only = [Folder.at_its_path(path, read_only=True) for path in self._readable(rules)]
        return _outermost([*own, *writable, *read_only])

    def refusals(self, rules: DataRules) -> Iterator[tuple[str, str, str]]:
        """Field, path and reason of each folder that the run needs and may not have."""
        if rules.whole:
            return
        fields = {
            self.workspace_field or "cwd": self.directory,
            "paperclipWorkspace.worktreePath": self.workspace.worktree_path,
        }
        for name, path in fields.items():
            relative = _relative(path)
            if path and relative is not None and (reason := refusal(_repository(relative), self.owner, rules)):
                yield name, path, reason

    def _writable(self, rules: DataRules) -> Iterator[str]:
        """The workspace with its repository, the other workspaces of the project, Paperclip's folder of the agent."""
        paths = (self.directory, self.workspace.worktree_path, *self.projects, self.workspace.agent_home)
        yield from self._permitted(map(_repository, _all_relative(paths)), rules)

    def _readable(self, rules: DataRules) -> Iterator[str]:
        instructions = posixpath.dirname(self.instructions) if self.instructions else None
        paths = list(_all_relative([instructions]))
        yield from self._permitted(paths, rules)
        for instance in dict.fromkeys(map(_instance, _all_relative([self.directory, instructions]))):
            if instance:
                yield f"{instance}/skills/{_segment(self.owner.company_id)}"
        for folder in self.skills:
            if permitted := skill_folder(folder, self.owner):
                yield permitted
        yield from rules.shared

    def _permitted(self, paths: Iterable[str], rules: DataRules) -> Iterator[str]:
        return (path for path in paths if refusal(path, self.owner, rules) is None)


def home_path(owner: Owner) -> str:
    """The folder of an agent's home, relative to the data volume; no other agent has the same."""
    return "/".join((HOMES, _folder(owner.company_id), _folder(owner.agent_id or "")))


def database_path(company: str, agent: str, task_key: str) -> str:
    """The folder of a task's database, relative to the data volume; no other task has the same."""
    return "/".join((DATABASES, _folder(company), _folder(agent), _folder(task_key)))


def skill_folder(path: str, owner: Owner) -> str | None:
    """The folder of a skill, relative to the data volume, if it is among the skills of the owner's company.

    Others, such as those in a project, are where agents can put a link in its place.
    """
    relative = _relative(path)
    if relative is None or ":" in relative:
        return None
    match relative.split("/"):
        case ["instances", _, "skills", company, _, *_] if company == _segment(owner.company_id):
            return relative
        case _:
            return None


def refusal(path: str, owner: Owner, rules: DataRules) -> str | None:
    """Why an agent may not have the folder at `path`, which is relative to the data volume; None when it may."""
    parts = path.split("/") if path else []
    if not parts:
        return "is the whole data volume"
    if parts[0].startswith("."):
        return "is no workspace: its name begins with '.'"
    if ":" in path:
        return "has a ':', which no mount path may have"
    if "instances" not in parts:
        listed = any(fnmatchcase(path, pattern) for pattern in rules.workspaces)
        return None if listed else "is not in the policy's list of workspaces"
    inside = parts[parts.index("instances") + 2 :]
    company, agent = _segment(owner.company_id), owner.agent_id
    match inside:
        case ["workspaces", name, *_]:
            return None if agent in (name, None) else "is another agent's"
        case ["projects", name, _, *_]:
            return None if name == company else "is another company's"
        case ["companies", name, "agents", other, "instructions", *_]:
            return None if name == company and agent in (other, None) else "is another agent's"
        case _:
            return "is Paperclip's own"


def _outermost(folders: Iterable[Folder]) -> tuple[Folder, ...]:
    """The folders without those that another one has, outer ones first; of two at one path the writable one."""
    kept: list[Folder] = []
    for folder in sorted(set(folders), key=lambda each: (each.mount_path.count("/"), each.mount_path, each.read_only)):
        if not any(each.has(folder) for each in kept):
            kept.append(folder)
    return tuple(kept)


def _repository(path: str) -> str:
    """The repository of a worktree at Paperclip's default place; any other path as it is."""
    return f"{path}/".partition(_WORKTREES)[0].rstrip("/") if _WORKTREES in f"{path}/" else path


def _relative(path: str | None) -> str | None:
    """The path relative to the data volume; None when it is elsewhere."""
    if not path or "\0" in path:
        return None
    plain = "/" + posixpath.normpath(path.strip()).lstrip("/")  # POSIX keeps two slashes at the beginning
    return plain[len(DATA_DIRECTORY) :].strip("/") if f"{plain}/".startswith(f"{DATA_DIRECTORY}/") else None


def _all_relative(paths: Iterable[str | None]) -> Iterator[str]:
    return (relative for path in paths if (relative := _relative(path)) is not None)


def _instance(path: str) -> str | None:
    """The folder of the Paperclip instance that this path belongs to."""
    parts = path.split("/")
    begin = parts.index("instances") if "instances" in parts else len(parts)
    return "/".join(parts[: begin + 2]) if len(parts) > begin + 2 else None


def _segment(name: str) -> str:
    """An id as Paperclip spells it in a path. Source: Paperclip 2026.916.1, `home-paths.js`."""
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", name.strip()).strip("-")


def _folder(name: str) -> str:
    """A name as the name of one folder, different ones for different names.

    Lowercase letters, digits, `_` and `-` stay; a name with anything else, a long one, and one that ends like a digest
    gets a digest.
    """
    plain = re.sub(r"[^a-z0-9_-]", "_", name.lower())
    if plain == name and len(name) <= _FOLDER_LIMIT and not _DIGEST.search(name):
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{plain[: _FOLDER_LIMIT - _DIGEST_LENGTH - 1]}-{digest}"
