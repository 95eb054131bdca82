"""The plugin is what the types of a real Paperclip ask for. They are too large for the plugin's own packages."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.paperclip_server.installation import ADAPTER, Unavailable, ensure_paperclip, ensure_plugin, node_home

pytestmark = pytest.mark.paperclip

UNTYPED = ("getConfigSchema", "listSkills", "syncSkills")
"""They return JSON: of the form's file, and of Paperclip's own helper."""
FITS = """
import type { ServerAdapterModule } from "@paperclipai/adapter-utils";
import { createServerAdapter } from "%(entry)s";
export const adapter: Omit<ServerAdapterModule, %(untyped)s> = createServerAdapter();
"""


async def test_the_plugin_fits_paperclips_types(tmp_path: Path) -> None:
    try:
        home = await ensure_paperclip()
        await ensure_plugin(tmp_path / "plugin")
    except Unavailable as reason:
        pytest.skip(f"no real Paperclip: {reason}")
    untyped = " | ".join(f'"{name}"' for name in UNTYPED)
    (tmp_path / "fits.ts").write_text(FITS % {"entry": ADAPTER / "src" / "index.ts", "untyped": untyped})
    (tmp_path / "package.json").write_text('{"type": "module"}')
    types = home / "node_modules" / "@paperclipai" / "adapter-utils" / "dist" / "index.d.ts"
    options = {
        "paths": {"@paperclipai/adapter-utils": [str(types)]},
        "typeRoots": [str(ADAPTER / "node_modules" / "@types")],
    }
    project = {"extends": str(ADAPTER / "tsconfig.json"), "compilerOptions": options, "include": ["fits.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(project))
    compiler = ADAPTER / "node_modules" / "typescript" / "bin" / "tsc"
    path = os.pathsep.join([str(node_home() / "bin"), os.environ.get("PATH", os.defpath)])
    command = [str(node_home() / "bin" / "node"), str(compiler), "--project", str(tmp_path)]
    environment = {**os.environ, "PATH": path}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.decode() == ""
    assert process.returncode == 0
