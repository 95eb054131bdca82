"""`./dev` shows that a long step goes on."""

import os
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from dev_stack.plan import ROOT


@pytest.fixture
def dev() -> ModuleType:
    loader = SourceFileLoader("dev", str(ROOT / "dev"))
    spec = spec_from_loader("dev", loader)
    assert spec is not None
    module = module_from_spec(spec)
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it would lie beside the command
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = bytecode
    return module


def test_a_step_that_takes_long_says_so_until_it_ends(
    dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo, said = tmp_path / "fifo", list[str]()
    os.mkfifo(fifo)

    def reported(text: str, **_: object) -> None:
        said.append(text)
        if len(said) == 2:
            fifo.write_text("go on")

    monkeypatch.setattr(dev, "REPORT_SEC", 0.01)
    monkeypatch.setattr(dev, "print", reported, raising=False)
    dev.step(["cat", str(fifo)], "remedy")
    assert said[:2] == ["dev: ... 0 s", "dev: ... 0 s"]
    with pytest.raises(SystemExit, match=r"dev: `false` failed. remedy"):
        dev.step(["false"], "remedy")
