"""Below a fence no link is followed and no second name is changed; every write of a run goes through the fence."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from repro.core import fence
from repro.core.errors import OutputError
from repro.core.files import read_bounded, write_text

ROOT = Path(__file__).resolve().parents[3]
WRITERS = ("record", "runner", "worker", "bundle", "launchers", "compare", "cli/workflows", "audit")
METHODS = {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "rename", "unlink", "rmdir", "mkdir"}
FUNCTIONS = re.compile(r"shutil\.(rmtree|copy2?|copyfile|copytree|move)"
                       r"|os\.(open|unlink|remove|rename|replace|mkdir|makedirs|link|symlink)")
ELSEWHERE = {
    "repro/bundle/archive.py": "a zip that the user names, and a folder of its own in TMPDIR",
    "repro/bundle/make.py": "the zip that was just written",
    "repro/cli/workflows/calibrate.py": "removes the whole run folder that it made",
    "repro/launchers/netns/namespaces.py": "/proc",
    "repro/launchers/netns/network.py": "/proc",
    "repro/launchers/nodes/agent.py": "a folder in the fork server's own in TMPDIR",
    "repro/launchers/nodes/secret.py": "the secret in the user's own configuration",
    "repro/launchers/processes/expendable.py": "a report in the fork server's own folder in TMPDIR",
    "repro/launchers/processes/launch_folder.py": "a folder of its own in TMPDIR",
    "repro/launchers/processes/preload.py": "a folder of its own in TMPDIR",
    "repro/launchers/processes/rank.py": "a report in the fork server's own folder in TMPDIR",
    "repro/launchers/slurm.py": "the folder in which the user wants the run",
    "repro/runner/energy_process.py": "a folder of its own in TMPDIR",
    "repro/runner/run.py": "removes the whole run folder that it made",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A fenced folder, next to a folder of the user."""
    (tmp_path / "home/inner").mkdir(parents=True)
    (tmp_path / "home/file").write_text("mine")
    (tmp_path / "home/inner/file").write_text("mine")
    (tmp_path / "run/sub").mkdir(parents=True)
    fence.put_around(tmp_path / "run")
    return tmp_path / "run"


ACCESSES: dict[str, Callable[[Path], Any]] = {
    "read": fence.read_bytes,
    "write": lambda path: fence.write_bytes(path, b"x"),
    "append": lambda path: fence.open_file(path, "ab"),
    "lock": lambda path: fence.open_handle(path, os.O_RDWR | os.O_CREAT),
    "text": lambda path: fence.open_text(path, "w"),
}
BY_FOLDER: dict[str, Callable[[Path], Any]] = {
    **ACCESSES,
    "replace": lambda path: fence.replace_file(path, b"x"),
    "folder": lambda path: fence.make_folder(path / "new"),
    "remove": fence.remove,
    "remove tree": fence.remove_tree,
    "rename": lambda path: fence.rename(path, path.with_name("other")),
}


def content(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted((root.parent / "home").rglob("*")) if path.is_file()}


@pytest.mark.parametrize("access", ACCESSES)
def test_a_link_is_not_followed(root: Path, access: str) -> None:
    before = content(root)
    (root / "a").symlink_to(root.parent / "home/file")
    (root / "b").symlink_to("../home/new")
    for name in ("a", "b"):
        with pytest.raises(OSError, match="is a symbolic link; links are not followed"):
            ACCESSES[access](root / name)
    assert content(root) == before


@pytest.mark.parametrize("access", BY_FOLDER)
def test_a_linked_folder_is_not_entered(root: Path, access: str) -> None:
    before = content(root)
    (root / "sub/link").symlink_to(root.parent / "home")
    for name in ("sub/link/file", "sub/link/inner/file"):
        with pytest.raises(OSError, match="is a symbolic link; links are not followed"):
            BY_FOLDER[access](root / name)
    assert content(root) == before and fence.names(root / "sub/link") == []


@pytest.mark.parametrize("access", BY_FOLDER)
def test_dots_do_not_lead_out(root: Path, access: str) -> None:
    before = content(root)
    with pytest.raises(OSError, match=r"leads out of its folder by `\.\.`"):
        BY_FOLDER[access](root / "sub/../../home/file")
    assert content(root) == before


def test_a_link_in_the_place_of_a_file_is_replaced_or_removed_itself(root: Path) -> None:
    before = content(root)
    for name in ("file", ".file.tmp", "gone", "tree"):
        (root / name).symlink_to(root.parent / "home" / ("file" if name != "tree" else "inner"))
    write_text(root / "file", "new")
    fence.remove(root / "gone")
    fence.remove_tree(root / "tree")
    assert (root / "file").read_text() == "new" and not (root / "file").is_symlink()
    assert sorted(path.name for path in root.iterdir()) == ["file", "sub"] and content(root) == before


def test_a_tree_is_removed_without_what_its_links_name(root: Path) -> None:
    before = content(root)
    (root / "tree/deep").mkdir(parents=True)
    (root / "tree/deep/link").symlink_to(root.parent / "home")
    (root / "tree/deep/file").write_text("x")
    fence.remove_tree(root / "tree")
    assert not (root / "tree").exists() and content(root) == before


def test_a_second_name_and_a_pipe_are_refused(root: Path) -> None:
    os.link(root.parent / "home/file", root / "hard")
    os.mkfifo(root / "pipe")
    for change in ("write", "append", "lock", "text"):
        with pytest.raises(OSError, match="second name elsewhere"):
            ACCESSES[change](root / "hard")
    assert fence.read_bytes(root / "hard") == b"mine"
    write_text(root / "hard", "new")  # a new file takes the name
    with pytest.raises(OutputError, match="no plain file"):
        read_bounded(root / "pipe")
    with pytest.raises(OutputError, match="pipe: is no plain file"):
        fence.refuse_links(root)
    assert (root.parent / "home/file").read_text() == "mine"


def test_the_folder_itself_may_be_reached_over_a_link(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root.parent / "latest").symlink_to(root)
    monkeypatch.chdir(root.parent)
    for place in (Path("latest"), Path("home/../latest"), root.parent / "latest"):
        fence.put_around(place)
        write_text(place / "new/file", "x")
        assert fence.read_bytes(place / "new/file") == b"x" and fence.names(place, "n*") == ["new"]
        (root / "new/link").unlink(missing_ok=True)
        (root / "new/link").symlink_to(root.parent / "home/file")
        with pytest.raises(OSError, match="is a symbolic link"):
            fence.read_bytes(place / "new/link")


def test_outside_of_a_fence_links_are_the_user_s(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bounded(tmp_path / "link") == b"x"


def writes(source: str) -> Iterator[tuple[int, str]]:
    """(line, call) of everything in a source text that changes files without the fence."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, method = ast.unparse(node.func), node.func.attr
        mode = next((item.value for item in (*node.args, *(key.value for key in node.keywords if key.arg == "mode"))
                     if isinstance(item, ast.Constant) and isinstance(item.value, str)), "")
        replaces = method == "replace" and len(node.args) == 1 and not node.keywords
        opens = method == "open" and bool(re.fullmatch(r"[rwaxbt+]+", mode)) and bool(set(mode) & set("wax+"))
        if not name.startswith("fence.") and (method in METHODS or replaces or opens or FUNCTIONS.fullmatch(name)):
            yield node.lineno, name


def test_every_write_of_a_run_goes_through_the_fence() -> None:
    files = [path for folder in WRITERS for path in (ROOT / "repro" / folder).rglob("*.py")]
    files += [ROOT / "repro/core/files.py", ROOT / "repro/core/events.py"]
    assert len(files) > 100
    found = {(path.relative_to(ROOT).as_posix(), line, call) for path in files
             for line, call in writes(path.read_text(encoding="utf-8"))}
    left = {item for item in found if item[0] not in ELSEWHERE}
    lines = {item: (ROOT / item[0]).read_text().splitlines()[item[1] - 1] for item in left}
    assert left == {item for item, line in lines.items()
                    if item[2] == "os.open" and ("O_RDONLY" in line or "os.devnull" in line)}
    assert {name for name, _, _ in found} >= set(ELSEWHERE), "an exception that is no longer needed"
