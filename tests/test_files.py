"""Files that people give a program: what is wrong with one is one line, with what it was given as and the remedy."""

import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_runs.files import UnusableFile, UnusableKey, read_json_object
from agent_runs.paperclip.sealing import load_or_create, public_key
from agent_runs.transcript.tokens import Tokens
from tests.support.cases import case

read_context = partial(read_json_object, name="--context", content="Paperclip's execution context")
OWNERS: list[Callable[..., Any]] = [load_or_create, Tokens.load]
LOADERS: list[Callable[..., Any]] = [*OWNERS, public_key]


def test_a_file_that_holds_no_json_object_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "context.json"
    for text in ("not json", "[]", '"text"', "\ufeff{", "[" * 100_000):
        file.write_text(text)
        with case(text[:10]), pytest.raises(UnusableFile, match=f"--context {file}: .*; give Paperclip's execution"):
            read_context(file)
    with pytest.raises(UnusableFile, match=f"--context {tmp_path}: Is a directory; give"):
        read_context(tmp_path)


def test_a_missing_key_is_created_for_its_owner_alone_and_stays(tmp_path: Path) -> None:
    for index, load in enumerate(OWNERS):
        with case(load):
            path = tmp_path / str(index) / "key.json"
            path.parent.mkdir()
            load(path)
            content = path.read_text()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            load(path)
            assert [file.name for file in path.parent.iterdir()] == ["key.json"]
            assert path.read_text() == content


def test_a_missing_key_is_created_neither_in_production_nor_by_a_caller(tmp_path: Path) -> None:
    refusing: list[Callable[..., Any]] = [*(partial(each, create=False) for each in OWNERS), public_key]
    for load in refusing:
        with case(load), pytest.raises(UnusableKey, match=r"_KEY_FILE: .*key\.json does not exist. Mount or copy"):
            load(tmp_path / "key.json")
    assert list(tmp_path.iterdir()) == []


def test_a_key_file_that_cannot_be_used_is_named_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    wrong = {
        tmp_path / "missing" / "key.json": "the folder .* does not exist. Correct the path, or create it",
        tmp_path: "cannot be read or created .Is a directory.. Give this program access to it",
        tmp_path / "binary": "is no text",
    }
    for load in LOADERS:
        for path, reason in wrong.items():
            if load is public_key and path.parent.name == "missing":
                continue  # it creates none
            with case(load, path), pytest.raises(UnusableKey, match=f"_KEY_FILE: {path} .*{reason}"):
                load(path)
