"""The pure parts of the embedded cluster, attacked at random."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.cluster import supervisor
from local.cluster.environment import expand
from local.cluster.kinds import PODS
from local.cluster.logs import Ears, Entries, LogOptions, read_log, tail_offset
from local.cluster.patches import json_patch, merge, strategic_merge
from local.cluster.refusals import Refused
from local.cluster.selectors import by_fields, by_labels
from local.cluster.tables import duration
from local.cluster.volumes import Volumes, project

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=3), json_values, max_size=4)


def written(path: Path, chunks: list[bytes]) -> bytes:
    """What the supervisor's log holds after reading these chunks from stdout."""
    path.unlink(missing_ok=True)
    log = supervisor.Log(str(path))
    for chunk in chunks:
        log.write(b"stdout", chunk)
    log.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "log"


pieces = st.binary(max_size=40) | st.sampled_from([b"x" * 16_384, b"y" * 16_383, b"z" * 40_000]) | st.just(b"\n")


@given(st.lists(pieces, max_size=6), st.integers(1, 200))
def test_a_log_gives_back_what_was_written_in_any_cutting(file: Path, chunks: list[bytes], cuts: int) -> None:
    raw = written(file, chunks)
    step = len(raw) // cuts + 1
    entries = Entries(LogOptions())
    answer = b"".join(entries.feed(raw[position : position + step]) for position in range(0, len(raw), step))
    assert answer == b"".join(chunks).replace(b"\r\n", b"\n")  # as containerd drops it


def test_only_the_first_part_of_a_long_line_is_stamped(file: Path) -> None:
    raw = written(file, [b"x" * 40_000 + b"\nshort\n"])
    parts = [line.split(b" ", 3) for line in raw.splitlines()]
    assert [part[2] for part in parts] == [b"P", b"P", b"F", b"F"]
    assert max(len(part[3]) for part in parts) == 16 * 1024
    answer = Entries(LogOptions(timestamps=True)).feed(raw)
    first, second, _ = answer.split(b"\n")
    assert first == parts[0][0] + b" " + b"x" * 40_000
    assert second == parts[3][0] + b" short"


@given(st.lists(st.text("ab\n", max_size=5), max_size=30), st.integers(0, 40))
def test_the_tail_is_the_last_entries(file: Path, lines: list[str], number: int) -> None:
    entries = [f"{line}".replace("\n", "") for line in lines]
    file.write_text("".join(f"{entry}\n" for entry in entries))
    with file.open() as opened:
        opened.seek(tail_offset(file, number))
        assert opened.read().splitlines() == (entries[-number:] if number else [])


async def test_without_inotify_a_follow_polls(tmp_path: Path) -> None:
    ears = Ears()
    ears.close()  # as if there had been no instance to be had
    log = supervisor.Log(str(tmp_path / "log"))
    finished, cut = asyncio.Event(), asyncio.Event()
    follow = read_log(tmp_path, LogOptions(follow=True), ears, finished, cut)
    log.write(b"stdout", b"one\n")
    assert await anext(follow) == b"one\n"
    log.write(b"stdout", b"two\n")
    assert await anext(follow) == b"two\n"
    log.write(b"stdout", b"three")
    log.close()
    finished.set()
    assert [data async for data in follow] == [b"three"]


@given(objects, objects)
def test_a_merge_patch_applied_twice_changes_nothing_more(target: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge(target, patch)
    assert merge(once, patch) == once


@given(objects)
def test_patches_leave_their_target_alone(target: dict[str, Any]) -> None:
    before = repr(target)
    merge(target, {"a": {"b": 1}})
    strategic_merge(target, {"a": {"b": 1}})
    json_patch(target, [{"op": "add", "path": "/new", "value": 1}])
    assert repr(target) == before


def test_a_strategic_patch_merges_containers_by_name() -> None:
    target = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}], "args": ["x", "y"]}
    patch = {"containers": [{"name": "b", "image": "2"}, {"name": "a", "$patch": "delete"}], "args": ["z"]}
    assert strategic_merge(target, patch) == {"containers": [{"name": "b", "image": "2"}], "args": ["z"]}


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/a/-", "value": 3}], {"a": [1, 2, 3]}),
        ([{"op": "add", "path": "/a/0", "value": 0}], {"a": [0, 1, 2]}),
        ([{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ([{"op": "replace", "path": "/a", "value": "x"}], {"a": "x"}),
        ([{"op": "move", "from": "/a/0", "path": "/b"}], {"a": [2], "b": 1}),
        ([{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1, 2], "b": [1, 2]}),
        ([{"op": "test", "path": "/a/1", "value": 2}], {"a": [1, 2]}),
    ],
    ids=lambda value: value[0]["op"] if isinstance(value, list) else "",
)
def test_json_patch_operations(operations: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    assert json_patch({"a": [1, 2]}, operations) == expected


@given(st.lists(st.dictionaries(st.sampled_from(["op", "path", "from", "value"]), json_values), min_size=1, max_size=3))
def test_a_nonsense_json_patch_is_refused_not_crashed(operations: list[dict[str, Any]]) -> None:
    with pytest.raises(Refused):
        json_patch({}, [*operations, {"op": "test", "path": "/missing", "value": 1}])


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_is_refused(text: str) -> None:
    for make in (by_labels, lambda given: by_fields(PODS, given)):
        with contextlib.suppress(Refused):
            assert make(text)({"metadata": {"name": "x"}}) in (True, False)


@given(st.text("$()AB x", max_size=20))
def test_expansion_knows_no_names_it_was_not_given(text: str) -> None:
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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "5s"), (119, "119s"), (180, "3m"), (200, "3m20s"), (3600, "60m"), (10800, "3h"), (200000, "2d")],
)
def test_ages_read_as_kubectl_writes_them(seconds: int, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text


def test_a_changed_secret_is_seen_beside_a_claim(tmp_path: Path) -> None:
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
    volumes = Volumes(pod, tmp_path / "pod", tmp_path / "claims", lambda _kind, _name: secret)
    volumes.prepare()
    secret["data"]["token"] = "dHdv"
    volumes.refresh()
    assert (tmp_path / "pod" / "token" / "token").read_bytes() == b"two"
