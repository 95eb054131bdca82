"""Volumes as directories of this machine: scratch space, claims, and the files of Secrets."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dev_stack.cluster.environment import Secrets, data_of
from dev_stack.cluster.kinds import Object
from dev_stack.cluster.objects import generated_name

File = tuple[bytes, int]
"""Content and mode."""


class NotMounted(Exception):
    """A volume cannot be set up; the text is the kubelet's."""


@dataclass(frozen=True)
class Mount:
    """A directory or file of this machine, shown at a path of the container."""

    source: str
    target: str
    read_only: bool


def project(directory: Path, files: Mapping[str, File]) -> None:
    """Show `files` in `directory`, replacing an earlier set in one step the way the kubelet does (`..data`)."""
    directory.mkdir(parents=True, exist_ok=True)
    current = directory / "..data"
    old = current.readlink().name if current.is_symlink() else None
    if old is not None and _shown(directory / old) == dict(files):
        return
    new = directory / f"..{generated_name('')}"
    new.mkdir()
    for name, (content, mode) in files.items():
        path = new / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    link = directory / "..data_tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(new.name)
    link.replace(current)
    tops = {name.split("/")[0] for name in files}
    for name in tops:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    for entry in directory.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if old is not None:
        shutil.rmtree(directory / old, ignore_errors=True)


def _shown(directory: Path) -> dict[str, File]:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in directory.rglob("*")
        if path.is_file()
    }


def secret_files(source: Object, secret: Object | None) -> dict[str, File]:
    """The files of a Secret volume.

    Raises:
        NotMounted: the Secret or one of the listed keys is missing and not optional.
    """
    if secret is None:
        if source.get("optional"):
            return {}
        raise NotMounted(f'secret "{source["secretName"]}" not found')
    entries, default_mode = data_of(secret), source["defaultMode"]
    if not source.get("items"):
        return {key: (content, default_mode) for key, content in entries.items()}
    files: dict[str, File] = {}
    for item in source["items"]:
        if item["key"] in entries:
            mode = item.get("mode")
            files[item["path"]] = (entries[item["key"]], default_mode if mode is None else mode)
        elif not source.get("optional"):
            raise NotMounted(f"references non-existent secret key: {item['key']}")
    return files


class Volumes:
    """The volumes of one pod, below its directory."""

    def __init__(self, pod: Object, directory: Path, claims: Path, secrets: Secrets) -> None:
        self._volumes: list[Object] = pod["spec"].get("volumes") or []
        self._directory = directory
        self._claims = claims / pod["metadata"]["namespace"]
        self._secrets = secrets
        self._directories: dict[str, tuple[Path, bool]] = {}

    def prepare(self) -> None:
        """Set every volume up.

        Raises:
            NotMounted: something is missing; it may be there at a later attempt.
        """
        for volume in self._volumes:
            try:
                self._directories[volume["name"]] = self._prepare(volume)
            except NotMounted as problem:
                raise NotMounted(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {problem}') from None

    def refresh(self) -> None:
        """Bring the files of Secrets up to date, each volume for itself: what is missing now stays as it was."""
        for volume in self._volumes:
            if "secret" in volume and volume["name"] in self._directories:
                with contextlib.suppress(NotMounted, OSError):
                    self._prepare(volume)

    def _prepare(self, volume: Object) -> tuple[Path, bool]:
        """The directory, and whether it is read-only."""
        directory = self._directory / volume["name"]
        if "secret" in volume:
            project(directory, secret_files(volume["secret"], self._secrets(volume["secret"].get("secretName", ""))))
            return directory, True
        if "persistentVolumeClaim" in volume:
            directory = self._claims / volume["persistentVolumeClaim"]["claimName"]
            directory.mkdir(parents=True, exist_ok=True)
            return directory, bool(volume["persistentVolumeClaim"].get("readOnly"))
        if "emptyDir" not in volume:
            raise NotMounted(f"the embedded cluster has no volumes of this type: {', '.join(set(volume) - {'name'})}")
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o777)  # for any user of the pod
        return directory, False

    def mounts(self, container: Object) -> list[Mount]:
        """What the container declares in `volumeMounts`; missing sub-paths of writable volumes are made.

        Raises:
            NotMounted: a sub-path does not exist, or leads out of its volume.
        """
        mounts = []
        for mount in container.get("volumeMounts") or ():
            directory, read_only = self._directories[mount["name"]]
            source = _inside(directory, mount["subPath"], read_only=read_only) if mount.get("subPath") else directory
            mounts.append(Mount(str(source), mount["mountPath"], read_only or bool(mount.get("readOnly"))))
        return mounts


def _inside(directory: Path, part: str, *, read_only: bool) -> Path:
    path = directory / part
    if not path.resolve().is_relative_to(directory.resolve()):
        raise NotMounted(f"subPath {part} leads out of its volume")
    if not read_only and not path.exists():
        path.mkdir(parents=True)
    if not path.exists():
        raise NotMounted(f"failed to prepare subPath {part}: no such file or directory")
    return path.resolve()


def claims_of(pod: Object) -> list[str]:
    volumes = pod["spec"].get("volumes") or ()
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]


def host_path() -> str:
    """The PATH of containers whose image, being only a name, gives none.

    An image has the program python3 itself. What a version manager has by that name is a script, which searches for the
    program at each start and takes 0.07 s of CPU for it, so the folder of ours comes before.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if (found := shutil.which("python3", path=os.pathsep.join(folders))) and _is_script(Path(found)):
        own = Path(sys.executable).resolve().parent
        folders.insert(folders.index(str(Path(found).parent)), str(own))
    return os.pathsep.join(folders)


def _is_script(program: Path) -> bool:
    with program.open("rb") as file:
        return file.read(2) == b"#!"
