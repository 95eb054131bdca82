"""The tokens of a run, and the agent's placeholders for them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, NamedTuple

KEY_PLACEHOLDER = "paperclip-api-proxy-sets-the-key"
"""The agent's value of `PAPERCLIP_API_KEY`."""
TOOLS_PLACEHOLDER = "paperclip-api-proxy-sets-the-tools-token"
"""The agent's value of `PAPERCLIP_RUNTIME_TOOLS_TOKEN`."""
TOKEN_FILE, RUN_ID_FILE, TOOLS_TOKEN_FILE = "token", "run-id", "tools-token"
"""Names in the folder of the Secret. Without connection tools there is no last one."""
GIVEN_FILE = "tokens.json"
"""Name in the sidecar's own folder: tokens that it was given for a later run count instead of the Secret's."""
MAX_TOKEN_CHARACTERS = 64 * 1024


class Tokens(NamedTuple):
    """The current tokens, and the Paperclip run that they belong to."""

    token: str
    run_id: str
    tools_token: str

    @classmethod
    def read(cls, folder: str, own: str) -> Tokens:
        """Read those that the sidecar was given, else the files of the Secret in one consistent state.

        The kubelet replaces `..data` atomically.

        Args:
            folder: of the Secret.
            own: the sidecar's own folder.

        Raises:
            OSError: the files do not exist.
            UnicodeDecodeError: they are no text.
        """
        with contextlib.suppress(FileNotFoundError), open(os.path.join(own, GIVEN_FILE)) as file:
            given = json.load(file)
            return cls(*(str(given.get(name) or "") for name in cls._fields))
        for _ in range(10):
            with contextlib.suppress(FileNotFoundError):
                return cls._of(os.path.realpath(os.path.join(folder, "..data")))
            with contextlib.suppress(FileNotFoundError):
                return cls._of(folder)
            time.sleep(0.01)  # replaced during the read
        return cls._of(folder)

    @classmethod
    def _of(cls, folder: str) -> Tokens:
        try:
            tools_token = _text(folder, TOOLS_TOKEN_FILE)
        except FileNotFoundError:
            tools_token = ""  # and if the whole folder is gone, the next line fails
        return cls(_text(folder, TOKEN_FILE), _text(folder, RUN_ID_FILE), tools_token)


def write_tokens(own: str, tokens: dict[str, Any]) -> None:
    """Give the proxy these tokens, by the names of `Tokens`; none: it refuses every request that needs one."""
    path = os.path.join(own, GIVEN_FILE)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with open(os.open(path + ".new", flags, 0o600), "w") as file:
        json.dump(tokens, file)
    os.replace(path + ".new", path)


def _text(folder: str, name: str) -> str:
    with open(os.path.join(folder, name)) as file:
        return file.read(MAX_TOKEN_CHARACTERS).strip()
