"""The build id names the code that runs inside the workflow."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent_runs.service.build_id import SOURCES, build_id, workflow_code_digest, workflow_modules

LOADED = "import sys, workflows.agent_run; print(*(n for n in sys.modules if n.split('.')[0] in {names}))"


def copy_of(modules: dict[str, Path], folder: Path) -> None:
    for file in modules.values():
        target = folder / file.relative_to(SOURCES)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def test_it_covers_every_module_of_ours_that_importing_the_workflow_loads() -> None:
    script = LOADED.format(names={"workflows", "agent_runs", "activities"})
    loaded = subprocess.run([sys.executable, "-c", script], cwd=SOURCES, capture_output=True, text=True, check=True)
    assert set(loaded.stdout.split()) <= set(workflow_modules(SOURCES))


def test_a_change_of_any_of_those_modules_changes_it(tmp_path: Path) -> None:
    modules = workflow_modules(SOURCES)
    copy_of(modules, tmp_path)
    before = workflow_code_digest(tmp_path)
    assert before == workflow_code_digest(SOURCES)
    for file in modules.values():
        changed = tmp_path / file.relative_to(SOURCES)
        original = changed.read_bytes()
        changed.write_bytes(original + b"\n# changed\n")
        assert workflow_code_digest(tmp_path) != before, f"{file} can change unnoticed"
        changed.write_bytes(original)
    assert workflow_code_digest(tmp_path) == before


def test_code_outside_the_workflow_does_not_change_it(tmp_path: Path) -> None:
    copy_of(workflow_modules(SOURCES), tmp_path)
    (tmp_path / "agent_runs/web").mkdir()
    (tmp_path / "agent_runs/web/pages.py").write_text("changed")
    assert workflow_code_digest(tmp_path) == workflow_code_digest(SOURCES)


def test_an_image_names_its_build_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_ID", "1.2.3")
    assert build_id() == "1.2.3"
