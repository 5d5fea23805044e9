"""The folder of DeepSpeed's extension: a killed build blocks nobody, and leaves nothing that could be loaded."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from repro.engines.zero import extension

HOLDER = """\
import sys, time
from pathlib import Path
from repro.engines.zero import extension
def compile_for_ever(folder):
    (folder / "cpu_adam").mkdir()
    (folder / "cpu_adam" / "lock").touch()  # as torch's loader does
    (folder / "cpu_adam" / "cpu_adam.so").write_text("half")
    print("building", flush=True)
    time.sleep(600)
extension._compile = compile_for_ever
extension.build(Path(sys.argv[1]))
"""


def test_a_killed_build_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "building\n"
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert list(tmp_path.glob("building-*/cpu_adam/lock"))

    def finish(folder: Path) -> None:
        assert [path.name for path in tmp_path.glob("building-*")] == [folder.name], "what was left is removed"
        (folder / "cpu_adam").mkdir()
        (folder / "cpu_adam" / "cpu_adam.so").write_text("whole")

    monkeypatch.setattr(extension, "_compile", finish)
    assert extension.build(tmp_path).read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpu_adam.so", "lock"]
    monkeypatch.setattr(extension, "_compile", lambda _: pytest.fail("built twice"))
    extension.build(tmp_path)
