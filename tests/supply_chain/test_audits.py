"""No package of ours has a known vulnerability; without a database the audit is skipped, and says so."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.supply_chain.audits import ROOT, BrokenAudit, NoAnswer, npm_vulnerabilities, python_vulnerabilities

ACCEPTED: Mapping[str, str] = {}
"""Vulnerabilities that do not reach us: a part of the line that reports them, and the reason."""
NOBODY = "http://127.0.0.1:1"


def unaccepted(audit: Callable[[], Sequence[str]]) -> Sequence[str]:
    try:
        found = audit()
    except NoAnswer as reason:
        pytest.skip(f"the database of vulnerabilities does not answer: {reason}")
    return [line for line in found if not any(part in line for part in ACCEPTED)]


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["requirements-worker.lock", "requirements.lock"])
def test_no_python_package_has_a_known_vulnerability(lock: str, tmp_path: Path) -> None:
    assert unaccepted(partial(python_vulnerabilities, ROOT / lock, tmp_path)) == []


@pytest.mark.slow
def test_no_package_of_the_plugin_has_a_known_vulnerability() -> None:
    assert unaccepted(partial(npm_vulnerabilities, ROOT / "adapter")) == []


# the audits themselves


@pytest.fixture
async def database() -> AsyncIterator[str]:
    """OSV and npm's registry at one address: aiohttp of PyPI and jose of npm are vulnerable in every version."""

    async def osv(request: web.Request) -> web.Response:
        name = (await request.json())["package"]["name"]
        affected = {"package": {"name": name, "ecosystem": "PyPI"}, "versions": ["1.0"]}
        found = [{"id": "GHSA-test", "aliases": [], "summary": "", "affected": [affected]}]
        return web.json_response({"vulns": found} if name == "aiohttp" else {})

    async def advisories(_: web.Request) -> web.Response:
        about = {"id": 1, "url": "", "title": "", "severity": "high", "vulnerable_versions": "*", "cwe": []}
        return web.json_response({"jose": [about]})

    application = web.Application()
    application.router.add_post("/v1/query", osv)
    application.router.add_post("/-/npm/v1/security/advisories/bulk", advisories)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.lock"
    path.write_text("aiohttp==1.0\nattrs==26.1.0 ; python_version >= '3.11'\n")
    return path


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    folder = tmp_path / "plugin"
    folder.mkdir()
    package: dict[str, Any] = {"name": "p", "version": "1.0.0", "devDependencies": {"jose": "6.2.17"}}
    jose = {"version": "6.2.17", "resolved": f"{NOBODY}/jose.tgz", "integrity": "sha512-AA==", "dev": True}
    packages = {"": package, "node_modules/jose": jose}
    (folder / "package.json").write_text(json.dumps(package))
    (folder / "package-lock.json").write_text(json.dumps({**package, "lockfileVersion": 3, "packages": packages}))
    return folder


async def test_a_vulnerability_is_found(database: str, lock: Path, plugin: Path, tmp_path: Path) -> None:
    found = await asyncio.to_thread(python_vulnerabilities, lock, tmp_path, f"{database}/v1/query")
    assert found == ["aiohttp 1.0: GHSA-test, corrected in none"]
    (line,) = await asyncio.to_thread(npm_vulnerabilities, plugin, f"--registry={database}")
    assert line.startswith("jose")
    assert line.endswith("high")


def test_a_database_that_is_not_reached_is_a_skip_with_its_reason(lock: Path, plugin: Path, tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"does not answer: .*Connection refused"):
        unaccepted(partial(python_vulnerabilities, lock, tmp_path, f"{NOBODY}/v1/query"))
    with pytest.raises(pytest.skip.Exception, match=r"does not answer: .*ECONNREFUSED"):
        unaccepted(partial(npm_vulnerabilities, plugin, f"--registry={NOBODY}"))


def test_a_lock_file_that_cannot_be_read_is_no_skip(plugin: Path, tmp_path: Path) -> None:
    with pytest.raises(BrokenAudit):
        python_vulnerabilities(tmp_path / "nowhere.lock", tmp_path, f"{NOBODY}/v1/query")
    (plugin / "package-lock.json").unlink()
    with pytest.raises(BrokenAudit):
        npm_vulnerabilities(plugin, f"--registry={NOBODY}")
