"""The commands of `agent-runs`. Every one has an example in its help; what is wrong is one line and exit code 2."""

import contextlib
import io
import os
import runpy
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from cli.lazy import lazy
from cli.refusals import Refused
from local.plan import FIXED, Plan, Ports, cache_folder

if TYPE_CHECKING:
    from cli import cluster as embedded
    from cli import display, failures, keys, runs, stacks
    from cli import parse as parsing
    from cli import replay as replaying
    from cli import transcripts as service
    from client import connection
else:
    embedded, display, failures, keys, parsing, replaying, runs, stacks, service, connection = map(
        lazy,
        (
            *("cli.cluster", "cli.display", "cli.failures", "cli.keys", "cli.parse", "cli.replay", "cli.runs"),
            *("cli.stacks", "cli.transcripts", "client.connection"),
        ),
    )

BROKEN_PIPE: Final = 141
"""Exit code of a program whose reader went away, as shells count it: 128 + SIGPIPE."""

app: Final = typer.Typer(
    name="agent-runs",
    help="Paperclip's durable OpenCode runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show OpenCode's own log lines (stderr) too.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Paperclip's run id, or an agent's id for its newest run.")]
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
        help="This machine's address as pods of that cluster reach it, for the scripted model. Found out by default: "
        "an address inside a node's pod network, else the one towards the nodes.",
    ),
]


@app.command()
def demo(
    kubeconfig: Kubeconfig = None,
    image: Image = None,
    scenario: Annotated[str, typer.Option(metavar="NAME", help="What the scripted model plays.")] = "script",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the stack up afterwards, until Ctrl-C.")] = False,
    state: State = None,
    model_host: ModelHost = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """One agent run, end to end, on this machine, live: real Temporal, real OpenCode, a scripted model.

    Example: agent-runs demo --scenario tool-fail
    """
    plan = Plan(_state(state, "demo"), Ports(), kubeconfig, image, model_host)
    shown = display.display(as_json=as_json, verbose=verbose)
    _await(lambda: stacks.demo(plan, shown, scenario=scenario, keep=keep))


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
    """The whole stack, up until Ctrl-C, for Paperclip or other terminals to talk to.

    Example: agent-runs dev --state .cache/dev, then in another terminal: source .cache/dev/environment.sh
    """
    ports = Ports(temporal_port, web_ui_port, 0, 0, cluster_port, model_port, pages_port)
    plan = Plan(_state(state, "dev"), ports, kubeconfig, image, model_host)
    _await(lambda: stacks.dev(plan, display.display(as_json=as_json)))


@app.command()
def cluster(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: the last one, or any free one.")] = 0,
    state: State = None,
    as_json: Json = False,
) -> None:
    """Only the embedded cluster, up until Ctrl-C: a Kubernetes API whose containers are processes of this machine.

    Example: agent-runs cluster --port 7443
    """
    _await(lambda: embedded.serve(_state(state, "cluster"), port, display.display(as_json=as_json)))


@app.command()
def start(
    context: Annotated[Path, typer.Option(metavar="FILE", help="Paperclip's execution context as JSON.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch it to its end; Ctrl-C detaches.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait while another task has the agent.")] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Start the run of an execution context, or join it if it was started before, or another one has its task.

    Example: agent-runs start --context context.json --follow
    """
    _await(lambda: runs.start(context, display.display(as_json=as_json, verbose=verbose), follow=follow, wait=wait))


@app.command()
def cancel(
    run: Run,
    reason: Annotated[str, typer.Option(help="Why, for the outcome.")] = "Cancelled by an operator",
    as_json: Json = False,
) -> None:
    """Stop a run's agent, whatever phase it is in. Says whether it really stopped and whether its session is kept.

    Example: agent-runs cancel 7d6733a4-a207-4bf9-87db-cf32e87a5407 --reason "wrong branch"
    """
    _await(lambda: runs.cancel(run, reason, display.display(as_json=as_json)))


@app.command()
def logs(
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on to the run's end; Ctrl-C detaches.")] = False,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Only lines after this sequence number.")] = 0,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """What a run's agent wrote, as a person reads it.

    Example: agent-runs logs 7d6733a4-a207-4bf9-87db-cf32e87a5407 --follow
    """
    _await(lambda: runs.logs(run, display.display(as_json=as_json, verbose=verbose), follow=follow, after=after))


@app.command()
def show(run: Run, as_json: Json = False) -> None:
    """One run: its steps with their times, and its outcome.

    Example: agent-runs show 7d6733a4-a207-4bf9-87db-cf32e87a5407
    """
    _await(lambda: runs.show(run, display.display(as_json=as_json)))


@app.command("list")
def listing(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    only_open: Annotated[bool, typer.Option("--open", help="Only runs that still go on.")] = False,
    as_json: Json = False,
) -> None:
    """The newest runs.

    Example: agent-runs list --open
    """
    _await(lambda: runs.listing(display.display(as_json=as_json), limit=limit, only_open=only_open))


@app.command()
def replay(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Paperclip's run id, or an agent's id for its newest run.")
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="HISTORY.json", help="A saved history instead of a RUN.")] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the history. It holds what the run said.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Breakpoints stop in the workflow's code.")] = False,
    as_json: Json = False,
) -> None:
    """Replay a run's history under the workflow code that is here. Exit code 1: they differ, and it says where.

    With --debug a breakpoint() in workflows/*.py stops there. Without editing:
    python -m pdb -m cli.main replay RUN --debug, then b FILE:LINE, then c.

    Example: agent-runs replay 7d6733a4-a207-4bf9-87db-cf32e87a5407 --save history.json
    """
    shown = display.display(as_json=as_json)
    _await(lambda: replaying.replay(run, shown, file=file, save=save, debug=debug))


@app.command()
def parse(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="OpenCode's saved stdout (--format json).")],
    stderr: Annotated[Path | None, typer.Option(metavar="FILE", help="Its saved stderr.")] = None,
    exit_code: Annotated[
        int | None, typer.Option(metavar="N", help="How it ended. Default: 0, or 128 + the signal.")
    ] = None,
    signal: Annotated[int | None, typer.Option(metavar="N", min=1, max=64, help="The signal it died of.")] = None,
    resumed_session: Annotated[str | None, typer.Option(metavar="ID", help="What it got with --session.")] = None,
    as_json: Json = False,
) -> None:
    """Fold a saved OpenCode output and say what came of the run. Needs nothing that runs. Exit code 1: it failed.

    Example: agent-runs parse events.jsonl --stderr stderr.txt --exit-code 1
    """
    shown = display.display(as_json=as_json)

    _finish(
        lambda: parsing.parse(file, shown, stderr=stderr, exit_code=exit_code, signal=signal, resumed=resumed_session)
    )


@app.command()
def transcripts(
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Default: AGENT_RUNS_TRANSCRIPTS_LISTEN.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Only the transcript service with the pages of runs, up until Ctrl-C; a worker can serve them too.

    Example: agent-runs transcripts --listen 127.0.0.1:8090
    """
    _await(lambda: service.serve(listen, display.display(as_json=as_json)))


@app.command("sealing-key")
def sealing_key() -> None:
    """The public half of the sealing key, as Paperclip's server needs it. What it seals only the worker opens.

    Example: agent-runs sealing-key > sealing-key.pub.json
    """
    _finish(keys.public)


@app.command()
def worker() -> None:
    """The worker itself, configured by AGENT_RUNS_* variables.

    Example: AGENT_RUNS_KUBECONFIG=~/.kube/config AGENT_RUNS_IMAGE=agent:1.18.33 agent-runs worker
    """
    runpy.run_module("worker", run_name="__main__")


def main() -> None:
    """Entry point. Text that the terminal's encoding lacks is replaced instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()


def _state(given: Path | None, name: str) -> Path:
    return (given or cache_folder() / name).absolute()


def _await(work: Callable[[], Awaitable[int]]) -> NoReturn:
    _finish(lambda: connection.run_to_end(work))


def _finish(work: Callable[[], int]) -> NoReturn:
    """Do a command's work and end with its exit code; a refusal is one line on stderr."""
    try:
        code = work()
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError):  # nobody reads: what is still buffered must not fail at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    except Exception as error:
        refusal = error if isinstance(error, Refused) else failures.told(error)
        if refusal is None:
            raise
        typer.echo(f"agent-runs: {refusal}", err=True)
        code = refusal.code
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
