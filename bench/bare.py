"""The baseline of `bench.follow`: aiohttp alone reads the same streams in its own process and drops them."""

import asyncio
import json
import ssl
import sys
from pathlib import Path

import aiohttp

from bench.agents import NAMESPACE


async def read_all(count: int, folder: Path) -> None:
    """Follows every agent to its end."""
    kubeconfig = json.loads((folder / "kubeconfig").read_text())
    cluster = kubeconfig["clusters"][0]["cluster"]
    trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
    connector = aiohttp.TCPConnector(limit=0, ssl=trust)
    limits = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=limits, headers={"User-Agent": "bare"}) as session:

        async def read(name: str) -> None:
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log?container=opencode&follow=true&timestamps=true"
            async with session.get(cluster["server"] + path) as response:
                async for _ in response.content.iter_any():
                    pass

        await asyncio.gather(*(read(f"agent-{number}") for number in range(count)))


if __name__ == "__main__":
    asyncio.run(read_all(int(sys.argv[1]), Path(sys.argv[2])))
