"""A stranger's git repository: planning a program of its folder starts nothing that the repository names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from repro.core.errors import SuiteError
from repro.core.git import git_blobs, git_files, git_hash
from repro.suite.kinds.program_files import export
from tests.hostile_records import invoke_words
from tests.plans import planned

SUITE = """\
suite: theirs
seeds: 1
trial:
  engine: {kind: program, run: [python, train.py, "{seed}"]}
  evaluation: {pattern: 'loss (?P<value>\\S+)', metric: loss, direction: lower}
  stop: {target: 1.5}
  timeout_seconds: 60
"""


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words], cwd=folder, check=True,
                   capture_output=True, timeout=60)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A checkout whose configuration starts a command at every opportunity; the command leaves a file."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "train.py").write_text("print('loss 1')\n")
    (folder / "tool.sh").write_text("#!/bin/sh\n")
    (folder / "tool.sh").chmod(0o755)
    (folder / ".gitattributes").write_text("* filter=theirs diff=theirs\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    command = tmp_path / "command.sh"
    command.write_text(f"#!/bin/sh\necho $0 >> {tmp_path / 'ran'}\ncat\n")
    command.chmod(0o755)
    (folder / ".git/hooks").mkdir(exist_ok=True)
    for hook in ("post-index-change", "post-checkout", "reference-transaction"):
        (folder / ".git/hooks" / hook).symlink_to(command)
    for key in ("filter.theirs.smudge", "filter.theirs.clean", "filter.theirs.process", "core.fsmonitor",
                "diff.external", "diff.theirs.textconv", "core.sshCommand", "core.pager"):
        git(folder, "config", key, str(command))
    git(folder, "config", "core.hooksPath", str(folder / ".git/hooks"))
    (folder / "train.py").write_text("print('loss 2')\n")
    return folder


@pytest.mark.parametrize("commit", ["", "commit: HEAD, "])
def test_planning_starts_nothing(trap: Path, monkeypatch: pytest.MonkeyPatch, commit: str) -> None:
    (trap / "suite.yaml").write_text(SUITE.replace("run: [", f"{commit}run: ["))
    monkeypatch.chdir(trap)
    for words in (("plan", "suite.yaml"), ("show", "suite.yaml")):
        code, error, _ = invoke_words(*words)
        assert code == 0, error
    assert not (trap.parent / "ran").exists()


def test_a_run_reads_commit_and_state_without_filters(trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (trap / "suite.yaml").write_text(SUITE)
    monkeypatch.chdir(trap)
    code, error, _ = invoke_words("run", "suite.yaml", "--no-mlflow", "--out", "run")
    assert code in (0, 1, 3), error
    assert not (trap.parent / "ran").exists()
    environment = (trap / "run/environment.json").read_text()
    assert '"dirty": true' in environment


def test_a_missing_blob_is_not_fetched(trap: Path) -> None:
    git(trap, "config", "extensions.partialClone", "theirs")
    git(trap, "config", "remote.theirs.promisor", "true")
    git(trap, "config", "remote.theirs.url", f"ext::{trap.parent / 'command.sh'}")
    git(trap, "config", "protocol.ext.allow", "always")
    files = git_files(trap, "HEAD")
    assert files is not None
    blob = files["train.py"].blob
    (trap / ".git/objects" / blob[:2] / blob[2:]).unlink()
    assert git_blobs(trap, [blob]) is None
    with pytest.raises(SuiteError, match="git cannot restore this folder"):
        planned(trap, SUITE.replace("run: [", "commit: HEAD, run: ["))
    assert not (trap.parent / "ran").exists()


def test_an_export_is_what_git_stores(trap: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export(trap, "HEAD", out)
    assert sorted(path.name for path in out.iterdir()) == [".gitattributes", "tool.sh", "train.py"]
    assert (out / "train.py").read_text() == "print('loss 1')\n"
    assert (out / "tool.sh").stat().st_mode & 0o111 and not (out / "train.py").stat().st_mode & 0o111
    files = git_files(trap, "HEAD")
    assert files is not None
    assert git_hash((out / "train.py").read_bytes(), files["train.py"].blob) == files["train.py"].blob


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / "train.py").symlink_to("../../../etc/passwd")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    with pytest.raises(SuiteError, match="leads out of the folder"):
        planned(folder, SUITE.replace("run: [", "commit: HEAD, run: ["))
