"""A tree that is taken can be restored, and makes nothing outside of its folder."""

import json
from typing import Any

import pytest

from agent_runs.workspace.tree import BLOCK, Limits, TreeTooLarge, UnusableTree, read_tree
from tests.support.cases import case
from tests.workspace.trees import tree

ROOT = {"kind": "dir", "path": "workspace", "mode": 0o755}
DIGEST = "a" * 64


def file(path: str, **other: Any) -> dict[str, Any]:
    return {"kind": "file", "path": path, "mode": 0o644, "modified": 1, "size": 1, "blocks": [DIGEST], **other}


def link(path: str, target: str = "a") -> dict[str, Any]:
    return {"kind": "link", "path": path, "target": target}


def test_files_folders_and_links_of_any_name_are_taken() -> None:
    entries = [
        *({"kind": "dir", "path": "session", "mode": 0o700}, ROOT, file('workspace/ \n\t\\"*?', mode=0o777)),
        *({"kind": "dir", "path": "workspace/a", "mode": 0}, file("workspace/a/b", size=0, blocks=[])),
        *(file("workspace/a.b", size=BLOCK + 1, blocks=[DIGEST] * 2), link("workspace/ü", "../../nowhere")),
    ]
    assert len(read_tree(json.dumps({"entries": entries}).encode()).entries) == len(entries)


def test_what_cannot_be_restored_as_it_is_is_refused_by_name() -> None:
    wrong: dict[str, tuple[list[Any], str]] = {
        "absolute": ([file("/etc/passwd")], "its folder is not there"),
        "outside": ([ROOT, file("workspace/../x")], "its folder is not there"),
        "the folder above": ([ROOT, {**ROOT, "path": "workspace/.."}], "no path of a file"),
        "an empty name": ([ROOT, {**ROOT, "path": "workspace/"}], "no path of a file"),
        "another root": ([{**ROOT, "path": "home"}], "its folder is not there"),
        "a root that is a file": ([file("workspace")], "its folder is not there"),
        "below a link": ([ROOT, link("workspace/a"), file("workspace/a/b")], "its folder is not there"),
        "below a file": ([ROOT, file("workspace/a"), file("workspace/a/b")], "its folder is not there"),
        "twice": ([ROOT, file("workspace/a"), link("workspace/a")], "there twice"),
        "out of order": ([ROOT, file("workspace/b"), file("workspace/a")], "out of order"),
        "NUL": ([ROOT, file("workspace/a\0b")], "no path of a file"),
        "a long path": ([ROOT, file(f"workspace/{'a' * 4096}")], "no path of a file"),
        "a long target": ([ROOT, link("workspace/a", "a" * 4097)], "no target of a link"),
        "an empty target": ([ROOT, link("workspace/a", "")], "no target of a link"),
        "setuid": ([ROOT, file("workspace/a", mode=0o4755)], "more than permissions"),
        "a size": ([ROOT, file("workspace/a", size=BLOCK + 1)], "contradict each other"),
        "no blocks": ([ROOT, file("workspace/a", blocks=[])], "contradict each other"),
        "a negative size": ([ROOT, file("workspace/a", size=-BLOCK, blocks=[])], "contradict each other"),
        "a digest": ([ROOT, file("workspace/a", blocks=["../../x"])], "no digest"),
        "an unknown field": ([ROOT, file("workspace/a", uid=0)], "no tree"),
        "a device": ([ROOT, {"kind": "device", "path": "workspace/a"}], "no tree"),
    }
    for name, (entries, fault) in wrong.items():
        with case(name), pytest.raises(UnusableTree, match=fault):
            read_tree(json.dumps({"entries": entries}).encode())


def test_no_bytes_at_all_break_the_reader() -> None:
    for raw in (b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b'{"entries":[{"kind":"dir","path":"\\ud800","mode":1}]}'):
        with pytest.raises(UnusableTree):
            read_tree(raw)


def test_a_tree_beyond_the_policy_is_refused_with_its_size() -> None:
    raw = tree({"a": b"x" * 10, "b/c": b"y" * 10})
    read_tree(raw, Limits(bytes=20, entries=4))
    with pytest.raises(TreeTooLarge, match="has 20 bytes; the policy allows 19"):
        read_tree(raw, Limits(bytes=19, entries=4))
    with pytest.raises(TreeTooLarge, match="has 4 entries; the policy allows 3"):
        read_tree(raw, Limits(bytes=20, entries=3))
