"""A Paperclip whose folders no pod sees: they are carried to the pods, and what agents do in them comes back."""

import os
import subprocess
from pathlib import Path
from typing import Final

from tests.paperclip_server.environment import APART, Environment
from tests.paperclip_server.installation import unprivileged
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.pod.driving import bash, script

GIT: Final = "git -c user.name=Ada -c user.email=ada@example.org"
DONE: Final = {"text": "Done."}


def git(folder: Path, *words: str) -> list[str]:
    """The lines that Git prints in a folder, whoever owns it."""
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def make_worktree(folder: Path) -> None:
    """In a project's folder, which is empty, a worktree of a repository that is beside it."""
    main = folder.with_name(f"{folder.name}-main")
    for name, text in (("file", "one\n"), ("gone", "one\n")):
        main.mkdir(exist_ok=True)
        (main / name).write_text(text)
    git(main, "init", "-q", "-b", "main")
    git(main, "add", "-A")
    git(main, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-q", "-m", "first")
    git(main, "worktree", "add", "-q", "-b", "work", str(folder))
    # the server sees both elsewhere
    (folder / ".git").write_text(f"gitdir: ../{main.name}/.git/worktrees/{folder.name}\n")
    (main / ".git" / "worktrees" / folder.name / "gitdir").write_text(f"../../../../{folder.name}/.git\n")
    if (user := unprivileged()) is not None:
        for top in (main, folder):
            for path in (top, *top.rglob("*")):
                os.chown(path, *user, follow_symlinks=False)


@scenario(Schedule.CONCURRENT)
async def test_what_agents_do_in_a_worktree_comes_back(env: Environment) -> None:
    instance = await env.instance(APART)
    project, tree = await instance.project("Carried")
    make_worktree(tree)
    agent = await instance.create_opencode_agent("Carried", "script")
    work = f"echo two > file; {GIT} commit -qam second; echo dirty > dirty; rm gone"
    issue = await instance.api.issue(instance.company, agent, "Work", script(bash(work), DONE), project)
    run = await instance.api.wait_ended(await instance.run(issue, agent=agent))
    assert run["status"] == "succeeded", run["error"]
    assert git(tree, "log", "--format=%s") == ["second", "first"]
    assert git(tree, "status", "--porcelain") == [" D gone", "?? dirty"]
    assert (tree / "dirty").read_text() == "dirty\n"
