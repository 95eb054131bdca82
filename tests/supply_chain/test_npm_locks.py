"""What npm installs for this repository is what was locked."""

import json
import subprocess
from pathlib import Path

from tests.support.cases import case

ROOT = Path(__file__).parents[2]


def test_every_package_of_npm_is_locked_by_its_hash() -> None:
    listed = subprocess.run(["git", "ls-files", "*package-lock.json"], cwd=ROOT, check=True, capture_output=True)
    locks = listed.stdout.decode().split()
    assert "adapter/package-lock.json" in locks
    for lock in locks:
        packages = json.loads((ROOT / lock).read_text())["packages"]
        found = {name: package for name, package in packages.items() if name and not package.get("link")}
        with case(lock):
            outside = {name: package for name, package in found.items() if not package.get("inBundle")}  # of a package
            assert [name for name, package in outside.items() if "integrity" not in package] == []
