"""The commands of `agent-runs`. Each has an example in its help; an error is one line and exit code 2."""

import runpy
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from agent_runs.cli.lazy import lazy
from agent_runs.cli.program import Json, Verbose, completion_script, entry_point, finish, program, run_async

if TYPE_CHECKING:
    from agent_runs.cli import display, keys, run_list, runs, serve, workspaces
    from agent_runs.cli import doctor as doctor_command
    from agent_runs.cli import replay as replay_command
    from agent_runs.client import run_list as filters
else:
    filters = lazy("agent_runs.client.run_list")
    display, doctor_command, keys, replay_command, run_list, runs, serve, workspaces = (
        lazy(f"agent_runs.cli.{name}")
        for name in ("display", "doctor", "keys", "replay", "run_list", "runs", "serve", "workspaces")
    )

app: Final = program("agent-runs", "Paperclip's durable agent runs.")


class Shell(StrEnum):
    """The shells that can complete commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's id or AGENT~RUN, or an agent's id for its newest run.")
]
Agent = Annotated[str, typer.Option(metavar="ID", help="Only runs of this agent.")]
Company = Annotated[str, typer.Option(metavar="ID", help="Only runs of this company.")]
Task = Annotated[str, typer.Option(metavar="KEY", help="Only runs of this task.")]
Model = Annotated[str, typer.Option(metavar="MODEL", help="Only runs with this model, such as openai/gpt-5.5.")]


def _phases() -> list[str]:
    return [phase.replace(" ", "-") for phase in filters.PHASES]


def _failures() -> list[str]:
    return list(filters.FAILURE_CODES)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agent-runs {version('agent-runs')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Paperclip's durable agent runs."""


@app.command()
def start(
    context: Annotated[Path, typer.Option(metavar="FILE", help="Paperclip's execution context as JSON.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow it to its end; Ctrl-C detaches.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait while another task has the agent.")] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Start the run of an execution context, or join the run that was started for it or its task before.

    Example: agent-runs start --context context.json --follow
    """
    run_async(lambda: runs.start(context, display.display(as_json=as_json, verbose=verbose), follow=follow, wait=wait))


@app.command()
def cancel(
    run: Run,
    reason: Annotated[str, typer.Option(help="The reason in the outcome.")] = "Cancelled by an operator",
    as_json: Json = False,
) -> None:
    """Stop a run's agent, whatever phase it is in. Show whether it has stopped and whether its session is kept.

    Example: agent-runs cancel 7d6733a4-a207-4bf9-87db-cf32e87a5407 --reason "wrong branch"
    """
    run_async(lambda: runs.cancel(run, reason, display.display(as_json=as_json)))


@app.command()
def tell(
    run: Run,
    text: Annotated[str, typer.Argument(help="What the agent is to know.")],
    as_json: Json = False,
) -> None:
    """Tell an agent something while it works. Return once it has the message.

    An agent that takes none while it works gets it as its next prompt in the same run. One that has ended its turn
    does not get it: comment on its task instead.

    Example: agent-runs tell 7d6733a4-a207-4bf9-87db-cf32e87a5407 "the branch is release-2, not main"
    """
    run_async(lambda: runs.tell(run, text, display.display(as_json=as_json)))


@app.command()
def answer(
    run: Run,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="ANSWER", help="For each part: an option, its number, or own words.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="The question's id; default: the oldest.")] = None,
    reject: Annotated[bool, typer.Option("--reject", help="Do not permit it, or decline to answer.")] = False,
    as_json: Json = False,
) -> None:
    """Answer what an agent asks, and return once it has the answer. Without an answer, show what it asks.

    Where several options may be chosen, separate them by commas. The first answer counts.

    Example: agent-runs answer 7d6733a4-a207-4bf9-87db-cf32e87a5407 "Allow once"
    """
    shown = display.display(as_json=as_json)
    run_async(lambda: runs.answer(run, words or [], shown, question=question, reject=reject))


@app.command()
def logs(
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue to the run's end; Ctrl-C detaches.")] = False,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Show only lines after this sequence number.")] = 0,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Show the output of a run's agent.

    Example: agent-runs logs 7d6733a4-a207-4bf9-87db-cf32e87a5407 --follow
    """
    run_async(lambda: runs.logs(run, display.display(as_json=as_json, verbose=verbose), follow=follow, after=after))


@app.command()
def show(run: Run, as_json: Json = False) -> None:
    """Show a run: its steps with their times, what happened, the evidence, what was lost, its session, what to do.

    Of an open run: what keeps it from going on.

    Example: agent-runs show 7d6733a4-a207-4bf9-87db-cf32e87a5407
    """
    run_async(lambda: runs.show(run, display.display(as_json=as_json)))


@app.command()
def workspace(
    run: Run,
    into: Annotated[Path, typer.Option("--into", metavar="DIR", help="A new folder, or an empty one.")],
    as_json: Json = False,
) -> None:
    """Write the folder of a run, as its agent left it, into another one. For a run whose workspace is carried.

    Example: agent-runs workspace 7d6733a4-a207-4bf9-87db-cf32e87a5407 --into left
    """
    run_async(lambda: workspaces.write(run, into, display.display(as_json=as_json)))


@app.command("list")
def listing(
    agent: Agent = "",
    company: Company = "",
    task: Task = "",
    phase: Annotated[
        str, typer.Option(metavar="PHASE", help="Only runs in this phase, such as failed.", autocompletion=_phases)
    ] = "",
    failure: Annotated[
        str, typer.Option(metavar="CODE", help="Only runs with this failure.", autocompletion=_failures)
    ] = "",
    model: Model = "",
    since: Annotated[str, typer.Option(metavar="WHEN", help="Started since: 30m, 24h, 7d, or 2026-01-31.")] = "",
    search: Annotated[str, typer.Option(metavar="TEXT", help="An id of a run, agent or task, or its beginning.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show this many at most.")] = 20,
    only_open: Annotated[bool, typer.Option("--open", help="Only runs that have not ended.")] = False,
    as_json: Json = False,
) -> None:
    """List the newest runs, with tokens and cost where the transcript store or service is reached.

    Where the terminal is narrow, columns are left out: kept until, agent, task, model, started; then ids are shortened
    to 8 characters, which every command takes, too; then tokens and took are left out.

    Example: agent-runs list --phase failed --since 24h
    """
    wanted = {"agent": agent, "company": company, "task": task, "phase": phase, "failure": failure, "model": model}
    wanted |= {"since": since, "search": search, "state": "working" if only_open else ""}
    run_async(lambda: run_list.listing(display.display(as_json=as_json), wanted, limit=limit))


@app.command()
def top(agent: Agent = "", company: Company = "", task: Task = "", model: Model = "", as_json: Json = False) -> None:
    """Show the runs that are at work, anew every 2 s until Ctrl-C; once where the output is no terminal.

    Example: agent-runs top
    """
    wanted = {"agent": agent, "company": company, "task": task, "model": model}
    run_async(lambda: run_list.top(display.display(as_json=as_json), wanted))


@app.command()
def replay(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A run's id or AGENT~RUN, or an agent's id for its newest run."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="HISTORY.json", help="Replay a saved history instead of a RUN.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the history. It holds the agent's last output.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Let breakpoints stop in the workflow's code.")] = False,
    as_json: Json = False,
) -> None:
    """Replay a run's history under the installed workflow code. Exit code 1: it does not replay.

    With --debug a breakpoint() in workflows/*.py stops there. Without editing:
    python -m pdb -m agent_runs.cli.main replay RUN --debug, then b FILE:LINE, then c.

    Example: agent-runs replay 7d6733a4-a207-4bf9-87db-cf32e87a5407 --save history.json
    """
    output = display.display(as_json=as_json)
    run_async(lambda: replay_command.replay(run, output, file=file, save=save, debug=debug))


@app.command()
def transcripts(
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The address to listen at. Default: AGENT_RUNS_TRANSCRIPTS_LISTEN."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve transcripts and the pages of runs until Ctrl-C, as a worker can, too.

    Example: agent-runs transcripts --listen 127.0.0.1:8090
    """
    run_async(lambda: serve.serve(listen, display.display(as_json=as_json)))


@app.command("revoke-links")
def revoke_links(run: Run, as_json: Json = False) -> None:
    """Revoke all links to a run that were created until now, also those that are open in a browser.

    Example: agent-runs revoke-links 7d6733a4-a207-4bf9-87db-cf32e87a5407
    """
    run_async(lambda: serve.revoke_links(run, display.display(as_json=as_json)))


@app.command("sealing-key")
def sealing_key() -> None:
    """Print the public sealing key, which Paperclip's server needs. Only the worker opens what it seals.

    Example: agent-runs sealing-key > sealing-key.pub.json
    """
    finish(keys.print_public_key)


@app.command("keys")
def print_keys(
    namespace: Annotated[str, typer.Option(help="The worker's namespace.")] = "paperclip",
    previous: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The Secret that is replaced; its keys still open.")
    ] = None,
) -> None:
    """Print manifests: the Secret with new keys of a worker, and a ConfigMap with the public half for callers.

    Example: agent-runs keys --namespace paperclip | kubectl create -f -
    """
    finish(lambda: keys.print_manifests(namespace, previous))


@app.command()
def doctor(
    agent_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An agent's configuration (adapterConfig) as JSON.")
    ] = None,
    company: Annotated[str, typer.Option(metavar="ID", help="Paperclip's id of the agent's company.")] = "doctor",
    namespace: Annotated[
        str | None, typer.Option(help="Of the worker's Deployment, which is looked at with your own kubeconfig.")
    ] = None,
    pod: Annotated[bool, typer.Option("--pod", help="Also run a pod of the agent, which calls no model.")] = False,
    as_json: Json = False,
) -> None:
    """Check what a run needs: Temporal, a worker, its key, Kubernetes, the store. Exit code 1: a run would fail.

    Example: agent-runs doctor --agent-config agent.json
    """
    run_async(
        lambda: doctor_command.doctor(agent_config, company, namespace, display.display(as_json=as_json), pod=pod)
    )


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script with which a shell completes commands and options.

    Example: agent-runs completion bash > ~/.local/share/bash-completion/completions/agent-runs
    """
    typer.echo(completion_script("agent-runs", shell.value))


@app.command()
def worker() -> None:
    """Run the worker, configured by AGENT_RUNS_* variables.

    Example: AGENT_RUNS_KUBECONFIG=~/.kube/config AGENT_RUNS_IMAGE=agent:1.18.33 agent-runs worker
    """
    runpy.run_module("worker", run_name="__main__")


main: Final = entry_point(app)


if __name__ == "__main__":
    main()
