"""Runtime code never pushes, and never assumes that a workspace has a remote: many a project of Paperclip has none."""

import itertools

import pytest

from tests.prose.remotes import assumptions, remotes, runtime_files, unused_permissions
from tests.support.cases import case


def test_no_runtime_code_pushes_or_assumes_a_remote() -> None:
    found = [place for path in runtime_files() for place in remotes(path)]
    assert not found, (
        "A workspace may have no remote. Do without it, or give the reason in a comment `allow-remote: REASON`:\n"
        + "\n".join(found)
    )


def test_what_is_allowed_occurs() -> None:
    assert not [place for path in runtime_files() for place in unused_permissions(path)]


def test_the_runtime_code_of_all_three_languages_is_read() -> None:
    paths = set(runtime_files())
    assert {"worker.py", "activities/create_job.py", "workflows/agent_run.py", "dev", "dev_stack/stack.py"} <= paths
    assert {"adapter/src/execute.ts", "agent_runs/pod/runner.sh", "agent_runs/web/assets/page.js"} <= paths
    assert not [path for path in paths if path.startswith(("tests/", "docs/")) or path.endswith(".md")]


PLANTED = [
    "git push",
    "git -C /paperclip/app push --force",
    "git -c user.name=x push",
    "git fetch origin",
    'git -C "$dir" pull',
    "git clone https://git.example/r",
    "git ls-remote",
    "git remote get-url x",
    "git submodule update --init",
    '["git", "push"]',
    '["git", "-C", folder, "push"]',
    '(\n    "git",\n    "push",\n)',
    '[git, "push"]',
    'execFile("git", ["push"])',
    "spawn('git', ['fetch', '--all'])",
    "exec(`git push ${branch}`)",
    '"origin/main"',
    "git merge origin/main",
    "git rev-parse @{upstream}",
    "git rev-parse @{u}",
    "refs/remotes/origin/HEAD",
    'REMOTE = "origin"',
    "git branch --set-upstream-to=x/y",
    "git checkout --track x/y",
    "import dulwich",
    "from git import Repo",
    'import { simpleGit } from "simple-git";',
]

COMMENTS = ["# a reason is missing", "// allow-remote:", "# allow-remote:   "]


def test_a_planted_push_or_remote_is_found_whatever_stands_beside_it() -> None:
    for planted, comment in itertools.product(PLANTED, COMMENTS):
        with case(planted, comment):
            text = f"first = 1\n{planted}  {comment}\n"
            assert next(line for line, _ in assumptions(text)) in {2, 3}


@pytest.mark.parametrize("mark", ["#", "//"])
@pytest.mark.parametrize("layout", ["git push  {}\n", "{}\ngit push\n", 'run(  {}\n    ["git", "push"])\n'])
def test_a_comment_with_a_reason_allows_what_stands_beside_or_below_it(mark: str, layout: str) -> None:
    allowed = layout.format(f"{mark} allow-remote: the operator has asked for it")
    assert list(assumptions(allowed)) == []
    assert [line for line, _ in assumptions(f"{allowed}\n\ngit push\n")] == [allowed.count("\n") + 3]


INNOCENT = [
    "git status --short",
    'subprocess.run(["git", "rev-parse", "HEAD"])',
    'parts.push("git")',
    "digit pushes",
    "items.push(one); git = 2",
    '"Cross-Origin-Opener-Policy": "same-origin"',
    "const { origin, pathname } = new URL(url);",
    '{"type": "remote", "url": url}',
    "heartbeat.pull()",
    "# the original/first one",
]


def test_what_has_nothing_to_do_with_a_remote_is_not_found() -> None:
    assert [innocent for innocent in INNOCENT if list(assumptions(innocent))] == []
