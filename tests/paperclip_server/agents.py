"""Agents whose `opencode` is a program of ours with a plan."""

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
        lines: numbered texts, one each `pace` seconds.
        hold: behind this line it waits for its release.
        tells: what it PATCHes its issue with at its end, one request each.
        dawdle: seconds between its last line and its end.
        keeps: variables whose values it writes into FOLDER/kept.json, with its configuration files.
        unknown_session: asked to resume this one, it says what OpenCode says of a session it does not have.
    """

    lines: int = 5
    pace: float = 0.02
    hold: int | None = None
    tells: dict[str, str] = field(default_factory=lambda: {"status": "done"})
    session: str = "ses_scripted"
    unknown_session: str | None = None
    code: int = 0
    dawdle: float = 0.0
    keeps: list[str] = field(default_factory=list)

    @property
    def said(self) -> list[str]:
        return [f"line {number}" for number in range(1, self.lines + 1)]


@dataclass(frozen=True)
class Scripted:
    """One scripted agent's program, on the volume."""

    folder: Path
    inside: str

    @classmethod
    def make(cls, volume: Path, plan: Plan) -> "Scripted":
        name = f"programs/{uuid.uuid4().hex[:12]}"
        made = cls(volume / name, f"/paperclip/{name}")
        made.folder.mkdir(parents=True)
        made.change(plan)
        program = made.folder / "opencode"
        here = Path(__file__).with_name("agent.py")
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {here} {made.inside} "$@"\n')
        program.chmod(0o755)
        return made

    def change(self, plan: Plan) -> None:
        """From its next start on."""
        (self.folder / "plan.json").write_text(json.dumps(asdict(plan)))

    def release(self) -> None:
        (self.folder / "release").touch()

    def hold(self) -> None:
        """Wait at the held line again."""
        (self.folder / "release").unlink(missing_ok=True)

    def starts(self) -> list[Object]:
        """One per start of the program."""
        try:
            lines = (self.folder / "starts.ndjson").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def kept(self) -> dict[str, Any]:
        """What its last start wrote down; see `Plan.keeps`."""
        found: dict[str, Any] = json.loads((self.folder / "kept.json").read_text())
        return found

    def config(self, **more: Any) -> Object:
        """An adapter configuration with this program as OpenCode."""
        environment = {"PATH": {"type": "plain", "value": f"{self.inside}:{os.environ.get('PATH', os.defpath)}"}}
        return {
            "model": "fake/scenario/text",
            "graceSec": 2,
            **more,
            "env": {**environment, **more.get("env", {})},
        }
