"""`agent-runs cluster`: only the embedded cluster."""

from pathlib import Path

from cli.display import Display
from cli.follow import Interrupts
from cli.refusals import Refused
from local.cluster import CannotStart, EmbeddedCluster


async def serve(state: Path, port: int, display: Display) -> int:
    """Only the embedded cluster, until Ctrl-C."""
    with Interrupts.caught() as interrupts:
        try:
            async with EmbeddedCluster(state, port) as embedded:
                kubeconfig = str(embedded.kubeconfig_path)
                display.facts({"url": embedded.url, "token": embedded.token, "KUBECONFIG": kubeconfig})
                display.note("Ctrl-C ends it and its containers")
                await interrupts.first.wait()
        except CannotStart as error:
            raise Refused(str(error)) from None
    return 0
