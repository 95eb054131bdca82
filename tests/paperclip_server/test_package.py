"""The npm package as `./dev packages` builds it, installed into a real Paperclip by its name."""

import asyncio
import base64
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dev_stack.plan import ROOT
from tests.paperclip_server.api import Api
from tests.paperclip_server.installation import Unavailable, ensure_paperclip, ensure_plugin, node_home
from tests.paperclip_server.server import NODE, PROGRAM, Server, run_server

pytestmark = pytest.mark.paperclip

NPM = f"""#!/bin/sh
exec {NODE}/bin/node {NODE}/lib/node_modules/npm/bin/npm-cli.js "$@"
"""
"""In PyPI's Node the program npm is a copy instead of a link, and does not find its library."""
TOOLS = "/paperclip-tools"


def manifest_of(package: Path) -> dict[str, Any]:
    with tarfile.open(package) as archive:
        described = archive.extractfile("package/package.json")
        assert described is not None
        manifest: dict[str, Any] = json.load(described)
        return manifest


@asynccontextmanager
async def registry(package: Path) -> AsyncIterator[str]:
    """The address of a registry that has this package only. Source: the registry API that `npm install` uses."""
    manifest, content = await asyncio.to_thread(lambda: (manifest_of(package), package.read_bytes()))
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()

    async def packument(request: web.Request) -> web.Response:
        if request.match_info["name"] != manifest["name"]:
            return web.json_response({"error": "not found"}, status=404)
        dist = {"tarball": f"http://{request.host}/-/{package.name}", "integrity": integrity}
        versions = {manifest["version"]: {**manifest, "dist": dist}}
        latest = {"latest": manifest["version"]}
        return web.json_response({"name": manifest["name"], "dist-tags": latest, "versions": versions})

    async def tarball(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type="application/octet-stream")

    application = web.Application()
    application.router.add_get("/{name}", packument)
    application.router.add_get(f"/-/{package.name}", tarball)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def packed(folder: Path) -> Path:
    """The npm package, built by the command's own program, and with it all others."""
    path = os.pathsep.join([str(node_home() / "bin"), os.environ["PATH"]])
    command = [sys.executable, str(ROOT / "deploy" / "packages.py"), "--to", str(folder)]
    subprocess.run(command, env=os.environ | {"PATH": path}, check=True, capture_output=True)
    [package] = folder.glob("*.tgz")
    return package


async def test_packages_are_the_same_twice_and_their_checksums_and_provenance_name_them(tmp_path: Path) -> None:
    try:
        await ensure_plugin(tmp_path / "plugin")
    except Unavailable as reason:
        pytest.skip(f"the plugin cannot be built: {reason}")
    first, second = tmp_path / "first", tmp_path / "second"
    await asyncio.to_thread(packed, first)
    await asyncio.to_thread(packed, second)
    files = {each.name: each.read_bytes() for each in first.iterdir()}
    assert files == {each.name: each.read_bytes() for each in second.iterdir()}
    lines = [line.split() for line in files.pop("SHA256SUMS").decode().splitlines()]
    checksums = {name: digest for digest, name in lines}
    statement = json.loads(files.pop("provenance.intoto.json"))
    assert {each["name"]: each["digest"]["sha256"] for each in statement["subject"]} == checksums
    assert checksums == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert {name.rpartition("0.1.0")[2] for name in files} == {"-py3-none-any.whl", ".tar.gz", ".tgz"}
    with tarfile.open(first / "paperclip-adapter-opencode-k8s-0.1.0.tgz") as archive:
        names = {each.removeprefix("package/") for each in archive.getnames()}
    own = {"LICENSE", "README.md", "package.json", "dist/index.js", "dist/ui-parser.cjs", "dist/licenses.txt"}
    assert names == own | {f"dist/opencode_local/{file}" for file in ("index.js", "package.json")}


async def test_the_package_is_installed_by_its_name_from_a_registry(tmp_path: Path) -> None:
    try:
        program = await ensure_paperclip()
        await ensure_plugin(tmp_path / "plugin")
    except Unavailable as reason:
        pytest.skip(f"no real Paperclip: {reason}")
    tools, volume = tmp_path / "tools", tmp_path / "volume"
    tools.mkdir()
    volume.mkdir()
    (tools / "npm").write_text(NPM)
    (tools / "npm").chmod(0o755)
    package = await asyncio.to_thread(packed, tmp_path / "packages")
    mounts = {NODE: str(node_home()), PROGRAM: str(program), TOOLS: str(tools)}
    async with registry(package) as address:
        environment = {"PATH": f"{TOOLS}:{NODE}/bin:/usr/bin:/bin", "npm_config_registry": address}
        server = Server("shop", volume, tmp_path, mounts, environment)
        async with run_server(server), Api.open(server.url) as api:
            installed = await api.post("/adapters/install", {"packageName": "paperclip-adapter-opencode-k8s"})
            assert (installed["type"], installed["version"]) == ("opencode_k8s", "0.1.0")
            assert (await api.installed())["loaded"] is True
            assert "parseStdoutLine" in await api.ui_parser()
            modules = f"{server.home}/adapter-plugins/node_modules"
            second = await api.install(f"{modules}/paperclip-adapter-opencode-k8s/dist/opencode_local")
            assert (second["type"], second["version"]) == ("opencode_local", "0.1.0")
            await server.terminate()
            await server.start()
            versions = {each["type"]: each.get("version") for each in await api.get("/adapters")}
            assert [versions[name] for name in ("opencode_k8s", "opencode_local")] == ["0.1.0", "0.1.0"]
