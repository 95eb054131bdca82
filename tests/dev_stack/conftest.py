"""A stand-in for npm."""

from pathlib import Path

import pytest


@pytest.fixture
def npm_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty program. What it notes in NPM_CALLS is in `calls` beside it."""
    path = tmp_path / "bin" / "npm"
    path.parent.mkdir()
    path.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setenv("NPM_CALLS", str(path.with_name("calls")))
    return path
