"""Tool calls in the words of each agent: scenarios call `bash`, `read` and `write` with OpenCode's arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Offered = Mapping[str, frozenset[str]]
"""The tools that an agent offers to the model: by name, the names of their arguments."""

_TOOLS: Final = {
    "bash": ("bash", "shell", "Bash", "exec_command", "shell_command", "run_shell_command"),
    "read": ("read", "Read", "read_file"),
    "write": ("write", "Write", "write_file"),
}
_ARGUMENTS: Final = {
    "command": ("command", "cmd"),
    "filePath": ("filePath", "file_path", "path", "absolute_path"),
}
_REQUIRED: Final = {"is_background": False}
"""What an agent's tool demands and OpenCode's does not have."""


@dataclass(frozen=True)
class Tool:
    name: str
    args: dict[str, Any] = field(default_factory=dict)

    def among(self, offered: Offered) -> "Tool":
        """The same call of a tool that is offered; unchanged if there is none like it."""
        if self.name == "write" and "exec_command" in offered:
            return Tool("exec_command", {"cmd": _patch(self.args)})
        name = next((name for name in _TOOLS.get(self.name, ()) if name in offered), None)
        return self if name is None else Tool(name, _arguments(self.args, offered[name]))


def _arguments(args: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    renamed = {_spelling(key, known): value for key, value in args.items()}
    return renamed | {key: value for key, value in _REQUIRED.items() if key in known}


def _spelling(key: str, known: frozenset[str]) -> str:
    return next((name for name in _ARGUMENTS.get(key, (key,)) if name in known), key)


def _patch(args: dict[str, Any]) -> str:
    """Codex has no tool that writes a file: it takes a patch, of a form of its own, out of a shell command."""
    lines = "".join(f"+{line}\n" for line in str(args.get("content", "")).splitlines())
    patch = f"*** Begin Patch\n*** Add File: {args.get('filePath', '')}\n{lines}*** End Patch"
    return f"apply_patch <<'EOF'\n{patch}\nEOF\n"
