"""Files that people give a program: JSON, and keys, which it makes for itself on a developer's machine."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

DEFAULT_FOLDER: Final = Path.home() / ".agent-runs"
"""For the files that a program makes for itself: keys, and the transcript store."""

MAX_JSON: Final = 32 * 1024 * 1024
"""Bytes of a JSON file. An execution context has some 30 KB."""

Keys = TypeVar("Keys")


class UnusableFile(ValueError):
    """A file holds no JSON object. One line that names what it was given as, and the remedy."""


class UnusableKey(ValueError):
    """A key is none of the kind that is needed, or its file cannot be read or created. Never quotes the key."""


def read_json_object(file: Path, name: str, content: str) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        name: of the option or setting that names the file.
        content: what the file should hold, in words.

    Raises:
        UnusableFile: it cannot be read, is too large, or holds something else.
    """

    def unusable(reason: str | None) -> UnusableFile:
        return UnusableFile(f"{name} {file}: {reason}; give {content} as a JSON file")

    try:
        text = file.read_bytes() if file.stat().st_size <= MAX_JSON else None
    except OSError as error:
        raise unusable(error.strerror) from None
    if text is None:
        raise unusable(f"larger than {MAX_JSON >> 20} MB")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise unusable("not JSON") from None
    if not isinstance(found, dict):
        raise unusable("must be one JSON object")
    return found


def load_keys(path: Path, setting: str, parse: Callable[[str], Keys], new_key: Callable[[], str] | None) -> Keys:
    """The keys in a file. A missing one gets a new key (mode 0600); without `new_key` it is refused.

    Args:
        setting: the variable that names the file.

    Raises:
        UnusableKey: names the setting.
    """
    try:
        return parse(_content(path, new_key))
    except UnusableKey as error:
        raise UnusableKey(f"{setting}: {path} {error}") from None
    except UnicodeDecodeError:
        raise UnusableKey(f"{setting}: {path} is no text; it must hold a JWK or a JWK set") from None
    except OSError as error:
        raise UnusableKey(
            f"{setting}: {path} cannot be read or created ({error.strerror}). Give this program access to it"
        ) from None


def jwks(text: str) -> list[dict[str, Any]]:
    """The keys in a JWK, or in a JWK set (`{"keys": [...]}`).

    Raises:
        UnusableKey: neither.
    """
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    listed = parsed.get("keys") if isinstance(parsed, dict) else None
    found: list[Any] = listed if isinstance(listed, list) else [parsed]
    if not found or not all(isinstance(jwk, dict) for jwk in found):
        raise UnusableKey("must be a JWK, or a JWK set with at least one key, as JSON text")
    return found


def _content(path: Path, new_key: Callable[[], str] | None) -> str:
    if not path.exists():
        if new_key is None:
            raise UnusableKey(
                "does not exist. Mount or copy the worker's key there; only a worker outside production creates one"
            )
        _create(path, new_key())
    return path.read_text()


def _create(path: Path, key: str) -> None:
    """Two processes that start together agree: the file appears whole and at once, and the first one wins."""
    if path.parent == DEFAULT_FOLDER:
        path.parent.mkdir(exist_ok=True, mode=0o700)
    if not path.parent.is_dir():  # another one that is missing is mostly misspelt
        raise UnusableKey(f"cannot be created: the folder {path.parent} does not exist. Correct the path, or create it")
    draft, name = tempfile.mkstemp(dir=path.parent, prefix=".key-")  # mkstemp makes it 0600
    try:
        with os.fdopen(draft, "w") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        os.link(name, path)
    except FileExistsError:
        pass
    finally:
        Path(name).unlink()
