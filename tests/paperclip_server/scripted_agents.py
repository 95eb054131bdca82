"""Agents whose `opencode` is a program that follows a plan."""

import json
import os
import sys
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.paperclip_server.api import Object


@dataclass(frozen=True)
class Plan:
    """What a scripted agent does.

    Attributes:
        lines: number of texts, one every `pace` seconds.
        hold: after this line it waits for its release.
        reports: fields of its issue that it PATCHes at its end, one request each.
        exit_delay: seconds between its last line and its end.
        records: variables whose values it writes into FOLDER/recorded.json, with its configuration files.
        unknown_session: resumed with this session, it fails as OpenCode does for an unknown session.
        refuses_start: it ends before its first event.
        error: status of the provider that ends it; 0 for an error without one.
        reason: why its last step ended.
        signal: number of the signal that ends it.
    """

    lines: int = 5
    pace: float = 0.02
    hold: int | None = None
    reports: dict[str, str] = field(default_factory=lambda: {"status": "done"})
    session: str = "ses_scripted"
    unknown_session: str | None = None
    code: int = 0
    exit_delay: float = 0.0
    records: list[str] = field(default_factory=list)
    refuses_start: bool = False
    error: int | None = None
    reason: str = "stop"
    signal: int | None = None

    @property
    def texts(self) -> list[str]:
        return [f"line {number}" for number in range(1, self.lines + 1)]


@dataclass(frozen=True)
class AgentProgram:
    """The program of one scripted agent.

    Attributes:
        folder: its folder on this machine, which pods of the embedded cluster see at the same path. It is not on the
            data volume, of which an agent gets only its own folders.
    """

    folder: Path

    @classmethod
    def create(cls, programs: Path, plan: Plan) -> "AgentProgram":
        program = cls(programs / uuid.uuid4().hex[:12])
        program.folder.mkdir(parents=True)
        program.set_plan(plan)
        executable = program.folder / "opencode"
        here = Path(__file__).with_name("scripted_opencode.py")
        executable.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {here} {program.folder} "$@"\n')
        executable.chmod(0o755)
        return program

    def set_plan(self, plan: Plan) -> None:
        """Takes effect with its next start."""
        (self.folder / "plan.json").write_text(json.dumps(asdict(plan)))

    def release(self) -> None:
        (self.folder / "release").touch()

    def hold(self) -> None:
        """Makes it wait at the held line in its next start."""
        (self.folder / "release").unlink(missing_ok=True)

    def starts(self) -> list[Object]:
        """One record per start of the program."""
        try:
            lines = (self.folder / "starts.ndjson").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def recorded(self) -> dict[str, Any]:
        """The record of its last start; see `Plan.records`."""
        found: dict[str, Any] = json.loads((self.folder / "recorded.json").read_text())
        return found

    def adapter_config(self, **more: Any) -> Object:
        """An adapter configuration with this program as OpenCode."""
        environment = {"PATH": {"type": "plain", "value": f"{self.folder}:{os.environ.get('PATH', os.defpath)}"}}
        return {
            "model": "fake/scenario/text",
            "graceSec": 2,
            "transport": "run",  # the program is no server
            **more,
            "env": {**environment, **more.get("env", {})},
        }
