"""Builds the packages for PyPI and npm, with what a recipient needs to check them.

    ./dev packages [--to FOLDER]

Into FOLDER (dist/packages unless named): the wheel and the source distribution of `agent-runs`, the npm package of the
plugin, SHA256SUMS, and `provenance.intoto.json`: an in-toto statement with SLSA's provenance: the commit and the
lock files that they were built from. It is not signed: an index does that with the identity of the pipeline that
publishes (`npm publish --provenance`, PyPI's trusted publishers). The same commit gives the same bytes.

Expects adapter/dist to be built, and Node in the environment, as `./dev packages` sees to.
Source: in-toto.io/Statement/v1 and slsa.dev/provenance/v1.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
ADAPTER: Final = ROOT / "adapter"
LOCKS: Final = ("uv.lock", "requirements-worker.lock", "adapter/package-lock.json")
CHECKSUMS, PROVENANCE = "SHA256SUMS", "provenance.intoto.json"


def build(folder: Path) -> list[Path]:
    """Build all packages into an empty folder; returns them."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct") or "0"}
    for target in ("wheel", "sdist"):
        command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as staged:
        for name in ("package.json", "README.md"):
            shutil.copy(ADAPTER / name, staged)
        shutil.copy(ROOT / "LICENSE", staged)
        shutil.copytree(ADAPTER / "dist", Path(staged) / "dist")
        node = Path(shutil.which("node") or "node").resolve()
        npm = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        command = [str(node), str(npm), "pack", "--silent", "--pack-destination", str(folder)]
        subprocess.run(command, cwd=staged, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.iterdir())


def provenance(packages: list[Path]) -> dict[str, Any]:
    """Return the statement of where the packages come from."""
    commit, changed = _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain"))
    sources = [{"uri": f"file:{name}", "digest": {"sha256": _sha256(ROOT / name)}} for name in LOCKS]
    if commit:
        sources.insert(0, {"uri": "git+file:.", "digest": {"gitCommit": commit}})
    definition = {
        "buildType": "https://slsa.dev/provenance/v1#buildDefinition",
        "externalParameters": {"command": "./dev packages", "uncommittedChanges": changed},
        "resolvedDependencies": sources,
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": each.name, "digest": {"sha256": _sha256(each)}} for each in packages],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": definition, "runDetails": {"builder": {"id": "deploy/packages.py"}}},
    }


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _git(*words: str) -> str:
    """The output of git; empty outside of a checkout."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> None:
    """Build them, and print their names."""
    parser = argparse.ArgumentParser(prog="dev packages")
    parser.add_argument("--to", type=Path, default=ROOT / "dist" / "packages", metavar="FOLDER")
    folder: Path = parser.parse_args().to.absolute()
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"dev packages: {folder} is not empty: remove it, or name another folder with --to")
    folder.mkdir(parents=True, exist_ok=True)
    packages = build(folder)
    (folder / CHECKSUMS).write_text("".join(f"{_sha256(each)}  {each.name}\n" for each in packages))
    (folder / PROVENANCE).write_text(json.dumps(provenance(packages), indent=2) + "\n")
    for each in packages:
        print(each)


if __name__ == "__main__":
    main()
