"""Parts of the embedded cluster by themselves, most of them attacked at random."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dev_stack.cluster.container_log import ContainerLog, Entries, LogOptions
from dev_stack.cluster.containers import send_signal
from dev_stack.cluster.environment import expand
from dev_stack.cluster.errors import ApiError
from dev_stack.cluster.kinds import CONFIG_MAPS, PODS
from dev_stack.cluster.requests import by_fields, by_labels
from dev_stack.cluster.volumes import Volumes, project
from dev_stack.cluster.writing import patched

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=3), json_values, max_size=4)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "log"


pieces = st.binary(max_size=40) | st.sampled_from([b"x" * 16_384, b"y" * 16_383, b"z" * 40_000]) | st.just(b"\n")


def written(path: Path, chunks: list[bytes]) -> bytes:
    """The log file after reading these chunks from standard output."""
    path.unlink(missing_ok=True)
    log = ContainerLog(path)
    for chunk in chunks:
        log.write(b"stdout", chunk)
    log.close()
    return path.read_bytes()


@given(st.lists(pieces, max_size=6), st.integers(1, 200))
async def test_a_log_returns_what_was_written_however_it_is_cut(file: Path, chunks: list[bytes], cuts: int) -> None:
    raw = written(file, chunks)
    step = len(raw) // cuts + 1
    entries = Entries(LogOptions())
    answer = b"".join(entries.feed(raw[position : position + step]) for position in range(0, len(raw), step))
    assert answer == b"".join(chunks).replace(b"\r\n", b"\n")  # as containerd drops it


async def test_only_the_first_part_of_a_long_line_is_stamped(file: Path) -> None:
    raw = written(file, [b"x" * 40_000 + b"\nshort\n"])
    parts = [line.split(b" ", 3) for line in raw.splitlines()]
    assert [part[2] for part in parts] == [b"P", b"P", b"F", b"F"]
    assert max(len(part[3]) for part in parts) == 16 * 1024
    answer = Entries(LogOptions(timestamps=True)).feed(raw)
    first, second, _ = answer.split(b"\n")
    assert first == parts[0][0] + b" " + b"x" * 40_000
    assert second == parts[3][0] + b" short"


@given(st.lists(st.dictionaries(st.sampled_from(["op", "path", "from", "value"]), json_values), min_size=1, max_size=3))
def test_a_nonsense_json_patch_is_refused(operations: list[dict[str, Any]]) -> None:
    patch = json.dumps([*operations, {"op": "test", "path": "/missing", "value": 1}]).encode()
    with pytest.raises(ApiError):
        patched(CONFIG_MAPS, {"metadata": {"name": "x", "uid": "y"}}, patch, "application/json-patch+json")


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_is_refused(text: str) -> None:
    for make in (by_labels, lambda given: by_fields(PODS, given)):
        with contextlib.suppress(ApiError):
            assert make(text)({"metadata": {"name": "x"}}) in (True, False)


@given(st.text("$()AB x", max_size=20))
def test_expansion_leaves_unknown_names(text: str) -> None:
    assert expand(text.replace("$$", ""), {}) == text.replace("$$", "").replace("$$", "$")


def test_expansion_follows_the_kubelet() -> None:
    assert expand("$(A)-$(B)-$$(A)-$A-$(A", {"A": "1"}) == "1-$(B)-$(A)-$A-$(A"


def test_projected_files_change_in_one_step(tmp_path: Path) -> None:
    place = tmp_path / "v"
    project(place, {"a": (b"1", 0o644), "sub/b": (b"2", 0o400)})
    assert ((place / "a").read_text(), (place / "sub" / "b").read_text()) == ("1", "2")
    assert (place / "a").readlink() == Path("..data/a")
    project(place, {"a": (b"3", 0o644)})
    assert (place / "a").read_text() == "3"
    assert sorted(entry.name for entry in place.iterdir() if not entry.name.startswith("..")) == ["a"]
    assert len(list(place.iterdir())) == 3  # a, ..data and the one set it points to


def test_a_changed_secret_is_shown_in_a_pod_with_a_claim(tmp_path: Path) -> None:
    secret: dict[str, Any] = {"data": {"token": "b25l"}}
    pod = {
        "metadata": {"namespace": "default", "name": "agent"},
        "spec": {
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "paperclip"}},
                {"name": "scratch", "emptyDir": {}},
                {"name": "token", "secret": {"secretName": "token", "defaultMode": 0o644}},
            ]
        },
    }
    volumes = Volumes(pod, tmp_path / "pod", tmp_path / "claims", lambda _name: secret)
    volumes.prepare()
    secret["data"]["token"] = "dHdv"
    volumes.refresh()
    assert (tmp_path / "pod" / "token" / "token").read_bytes() == b"two"


async def test_a_process_that_ends_while_it_is_signalled_keeps_its_exit_code() -> None:
    codes = set()
    for _ in range(50):
        process = await asyncio.create_subprocess_exec("sh", "-c", "exit 7")
        while process.returncode is None:
            send_signal(process, signal.SIGCONT)
            await asyncio.sleep(0)
        codes.add(process.returncode)
    assert codes == {7}
