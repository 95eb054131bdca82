"""Any tree comes back as it was."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_runs.pod.sidecar.workspace.restore import apply, fetching
from agent_runs.pod.sidecar.workspace.scan import BLOCK, Scanner
from agent_runs.workspace.tree import read_tree
from tests.pod.workspace.pods import content
from tests.pod.workspace.service import Service, serving_workspaces

names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."}
) | st.sampled_from(["a", "b", "a-b", "a.b", "é", "-wal"])
files = st.tuples(
    st.binary(max_size=3),
    st.sampled_from([1, 1, 1, 9, BLOCK // 2 + 1, BLOCK]),
    st.sampled_from([0o644, 0o755, 0o600, 0o444, 0o400]),
    st.integers(-(10**15), 4 * 10**15),
)
links = st.sampled_from(["a", "../a", "/etc/passwd", "nowhere", "é"])
modes = st.sampled_from([0o755, 0o700, 0o500, 0o555])
folders = st.recursive(
    st.tuples(modes, st.dictionaries(names, files | links, max_size=4)),
    lambda inner: st.tuples(modes, st.dictionaries(names, files | links | inner, max_size=4)),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def one_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_workspaces(tmp_path_factory.mktemp("store")) as service:
        yield service


def make(folder: Path, of: object) -> None:
    if isinstance(of, str):
        folder.symlink_to(of)
    elif isinstance(of, tuple) and isinstance(of[0], bytes):
        piece, times, mode, modified = of
        folder.write_bytes(piece * times)
        os.utime(folder, ns=(0, modified * 1000))
        folder.chmod(mode)
    elif isinstance(of, tuple):
        folder.mkdir()
        for name, inner in of[1].items():
            make(folder / name, inner)
        folder.chmod(of[0])


def unlock(folder: Path) -> None:
    """Let the folder be deleted."""
    for path, _, _ in os.walk(folder):
        Path(path).chmod(0o700)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workspace=folders, before=folders, session=folders)
def test_any_tree_comes_back_over_any_other(
    one_service: Service, workspace: object, before: object, session: object
) -> None:
    run, place = one_service.new_run(), tempfile.TemporaryDirectory()
    with place as home:
        ours = {"workspace": Path(home, "workspace"), "session/db": Path(home, "db"), "session/home/x": Path(home, "x")}
        make(ours["workspace"], workspace)
        make(ours["session/db"], session)
        scanner = Scanner({root: str(path) for root, path in ours.items()})
        scanner.scan()
        read_tree(scanner.tree)
        assert scanner.warnings.texts() == []
        store, blocks = run.client(), scanner.blocks()
        store.send(scanner.content(block, blocks[block]) or b"" for block in store.missing(list(blocks)))
        number = store.add_tree(scanner.tree, "checkpoint", 1, "ses_1")

        theirs = {root: Path(home, "restored", path.name) for root, path in ours.items()}
        theirs["workspace"].parent.mkdir()
        make(theirs["workspace"], before)
        make(theirs["session/home/x"], before)  # the tree has none
        for _ in range(2):
            tree = json.loads(store.tree(number))
            apply(tree, {root: str(path) for root, path in theirs.items()}, fetching(run.config({}), number))
            for root in ("workspace", "session/db"):
                assert content(theirs[root]) == content(ours[root])
                assert theirs[root].stat().st_mode == ours[root].stat().st_mode
            assert content(theirs["session/home/x"]) == {}
        store.close()
        unlock(Path(home))
