"""`./dev demo`, `./dev dev` and `./dev cluster`: a whole system, or its embedded cluster, on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from agent_runs.cli.lazy import lazy
from agent_runs.cli.program import Json, Verbose, entry_point, program, run_async
from dev_stack.plan import FIXED, Plan, Ports, cache_folder

if TYPE_CHECKING:
    from agent_runs.cli import display
    from dev_stack import commands
else:
    display, commands = map(lazy, ("agent_runs.cli.display", "dev_stack.commands"))

app: Final = program("./dev", "A whole system on this machine: demo, dev, cluster.")

State = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for everything that must survive.")]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", exists=True, dir_okay=False, help="A real cluster instead of the embedded one."),
]
Image = Annotated[str | None, typer.Option(metavar="IMAGE", help="Image with OpenCode for agents on that cluster.")]
ModelHost = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="This machine's address as pods of that cluster reach it, for the scripted model. By default "
        "an address inside a node's pod network, else the one towards the nodes.",
    ),
]


@app.command()
def demo(
    kubeconfig: Kubeconfig = None,
    image: Image = None,
    agent: Annotated[
        str, typer.Option(metavar="NAME", help="Whose program runs: opencode, claude, codex, gemini, pi or qwen.")
    ] = "opencode",
    opencode: Annotated[int, typer.Option(min=1, max=2, help="The version of OpenCode.")] = 1,
    scenario: Annotated[str, typer.Option(metavar="NAME", help="The scenario of the scripted model.")] = "script",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the stack up afterwards, until Ctrl-C.")] = False,
    twice: Annotated[
        bool, typer.Option("--twice", help="Then wake the agent again for the same task; show how long each took.")
    ] = False,
    state: State = None,
    model_host: ModelHost = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """One agent run, end to end, on this machine, live: real Temporal, the real agent, a scripted model.

    Example: ./dev demo --scenario tool-fail, ./dev demo --opencode 2, or ./dev demo --agent claude
    """
    plan = Plan(_state(state, "demo"), Ports(), kubeconfig, image, model_host, agent=agent, opencode=opencode)
    shown = display.display(as_json=as_json, verbose=verbose)
    run_async(lambda: commands.demo(plan, shown, scenario=scenario, keep=keep, twice=twice))


@app.command()
def dev(
    kubeconfig: Kubeconfig = None,
    image: Image = None,
    temporal_port: Annotated[int, typer.Option(help="Temporal's port; 0: any free one.")] = FIXED.temporal,
    web_ui_port: Annotated[int, typer.Option(help="The Web UI's port; 0: any free one.")] = FIXED.web_ui,
    cluster_port: Annotated[int, typer.Option(help="The embedded cluster's port; 0: any.")] = FIXED.cluster,
    model_port: Annotated[int, typer.Option(help="The scripted model's port; 0: any free one.")] = FIXED.model,
    pages_port: Annotated[int, typer.Option(help="The port of transcripts and pages; 0: any free one.")] = FIXED.pages,
    state: State = None,
    model_host: ModelHost = None,
    as_json: Json = False,
) -> None:
    """The whole stack, up until Ctrl-C, for Paperclip and other terminals.

    Example: ./dev dev --state .cache/dev, then in another terminal: source .cache/dev/environment.sh
    """
    ports = Ports(temporal_port, web_ui_port, 0, 0, cluster_port, model_port, pages_port)
    plan = Plan(_state(state, "dev"), ports, kubeconfig, image, model_host)
    run_async(lambda: commands.dev(plan, display.display(as_json=as_json)))


@app.command()
def cluster(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: any free one.")] = 0,
    state: State = None,
    as_json: Json = False,
) -> None:
    """Only the embedded cluster, up until Ctrl-C: a Kubernetes API whose containers are processes of this machine.

    Example: ./dev cluster --port 7443
    """
    run_async(lambda: commands.cluster(_state(state, "cluster"), port, display.display(as_json=as_json)))


def _state(folder: Path | None, name: str) -> Path:
    return (folder or cache_folder() / name).absolute()


main: Final = entry_point(app)

if __name__ == "__main__":
    main()
