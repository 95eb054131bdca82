"""Volumes as directories of the host: scratch space, claims, and the projected files of Secrets and ConfigMaps."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local.cluster.environment import Lookup, data_of, environment, expand, field_value
from local.cluster.kinds import CONFIG_MAPS, SECRETS, Kind, Object
from local.cluster.objects import generated_name

_KEPT = frozenset({"emptyDir", "hostPath", "persistentVolumeClaim"})  # theirs is what containers write
File = tuple[bytes, int]  # content and mode


class NotMounted(Exception):
    """A volume cannot be set up; the text is the kubelet's."""


@dataclass(frozen=True)
class Mount:
    """A place of the host shown at a path of the container."""

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
    fresh = directory / f"..{generated_name('')}"
    for name, (content, mode) in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    fresh.mkdir(exist_ok=True)
    link = directory / "..data_tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(fresh.name)
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


def projected_files(kind: Kind, source: Object, body: Object | None, default_mode: int) -> dict[str, File]:
    """The files of a Secret or ConfigMap volume.

    Raises:
        NotMounted: the object or one of the listed keys is missing and not optional.
    """
    name = source.get("secretName") or source.get("name")
    if body is None:
        if source.get("optional"):
            return {}
        raise NotMounted(f'{kind.name.lower()} "{name}" not found')
    entries = data_of(kind, body)
    if not source.get("items"):
        return {key: (content, default_mode) for key, content in entries.items()}
    files: dict[str, File] = {}
    for item in source["items"]:
        if item["key"] in entries:
            mode = item.get("mode")
            files[item["path"]] = (entries[item["key"]], default_mode if mode is None else mode)
        elif not source.get("optional"):
            raise NotMounted(f"references non-existent {kind.name.lower()} key: {item['key']}")
    return files


class Volumes:
    """The volumes of one pod, below its directory."""

    def __init__(self, pod: Object, directory: Path, claims: Path, lookup: Lookup) -> None:
        self._pod = pod
        self._directory = directory
        self._claims = claims / pod["metadata"]["namespace"]
        self._lookup = lookup
        self._places: dict[str, tuple[Path, bool]] = {}

    def prepare(self) -> None:
        """Set every volume up.

        Raises:
            NotMounted: something is missing; worth another try later.
        """
        for volume in self._pod["spec"].get("volumes") or ():
            name = volume["name"]
            try:
                self._places[name] = self._prepare(volume, self._directory / name)
            except NotMounted as problem:
                raise NotMounted(f'MountVolume.SetUp failed for volume "{name}" : {problem}') from None

    def refresh(self) -> None:
        """Bring projected files up to date, each volume for itself: what is missing now stays as it was."""
        for volume in self._pod["spec"].get("volumes") or ():
            if volume["name"] in self._places and not _KEPT & volume.keys():
                with contextlib.suppress(NotMounted, OSError):
                    self._prepare(volume, self._directory / volume["name"])

    def _prepare(self, volume: Object, place: Path) -> tuple[Path, bool]:
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"]), False
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]
            path = self._claims / claim["claimName"]
            path.mkdir(parents=True, exist_ok=True)
            return path, bool(claim.get("readOnly"))
        sources = self._projected_sources(volume)
        if sources is None:
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o1777 if volume["emptyDir"].get("medium") == "Memory" else 0o777)  # for any user of the pod
            return place, False
        files: dict[str, File] = {}
        for source, mode in sources:
            files |= self._files(source, mode)
        project(place, files)
        return place, True

    @staticmethod
    def _projected_sources(volume: Object) -> list[tuple[Object, int]] | None:
        if "projected" in volume:
            mode = volume["projected"]["defaultMode"]
            return [(source, mode) for source in volume["projected"].get("sources") or ()]
        for name in ("secret", "configMap", "downwardAPI"):
            if name in volume:
                return [({name: volume[name]}, volume[name]["defaultMode"])]
        if "emptyDir" in volume:
            return None
        kind = next(iter(set(volume) - {"name"}))
        raise NotMounted(f"volume type {kind} is not supported by the embedded cluster")

    def _files(self, source: Object, mode: int) -> dict[str, File]:
        for kind, field in ((SECRETS, "secret"), (CONFIG_MAPS, "configMap")):
            if field in source:
                body = self._lookup(kind, source[field].get("secretName") or source[field].get("name", ""))
                return projected_files(kind, source[field], body, mode)
        items = (source.get("downwardAPI") or {}).get("items") or ()
        return {item["path"]: (field_value(self._pod, item["fieldRef"]["fieldPath"]).encode(), mode) for item in items}

    @staticmethod
    def _host_path(source: Object) -> Path:
        path, kind = Path(source["path"]), source["type"]
        if kind == "DirectoryOrCreate":
            path.mkdir(parents=True, exist_ok=True)
        elif kind == "FileOrCreate":
            path.touch()
        tests = {"Directory": path.is_dir, "File": path.is_file, "Socket": path.is_socket}
        if (kind in tests and not tests[kind]()) or not path.exists():
            raise NotMounted(f"hostPath type check failed: {path} is not a {kind.lower() or 'path of this host'}")
        return path

    def mounts(self, container: Object) -> list[Mount]:
        """What the container declares in `volumeMounts`; missing sub-paths of writable volumes are made."""
        found = []
        for mount in container.get("volumeMounts") or ():
            place, read_only = self._places[mount["name"]]
            part = mount.get("subPath", "")
            if "subPathExpr" in mount:
                part = expand(mount["subPathExpr"], environment(container, self._pod, self._lookup))
            if part:
                place = self._inside(place, part, read_only=read_only)
            found.append(Mount(str(place), mount["mountPath"], read_only or bool(mount.get("readOnly"))))
        return found

    @staticmethod
    def _inside(place: Path, part: str, *, read_only: bool) -> Path:
        path = place / part
        if not path.exists() and not read_only:
            path.mkdir(parents=True, exist_ok=True)
        resolved = path.resolve()
        if not resolved.is_relative_to(place.resolve()):
            raise NotMounted(f"subPath {part} leads out of its volume")
        if not resolved.exists():
            raise NotMounted(f"failed to prepare subPath {part}: no such file or directory")
        return resolved


def claims_of(pod: Object) -> list[str]:
    """The names of the claims a pod mounts."""
    volumes = pod["spec"].get("volumes") or ()
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]


def forget_claim(claims: Path, claim: Object) -> None:
    """Delete a claim's data, as a storage class with reclaim policy Delete does."""
    shutil.rmtree(claims / claim["metadata"]["namespace"] / claim["metadata"]["name"], ignore_errors=True)


def host_path() -> str:
    """The PATH of containers whose image, being only a name, gives none."""
    return os.environ.get("PATH", os.defpath)
