"""Documents set with pdflatex."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest


def typeset(document: Path, runs: int = 1, bibliography: bool = False) -> str:
    """Set a document with pdflatex; return the last log. Skip the test if its class or TeX is missing."""
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")
    (name,) = re.findall(r"\\documentclass(?:\[.*?\])?\{(\w+)\}", document.read_text())
    if subprocess.run(["kpsewhich", f"{name}.cls"], capture_output=True).returncode:
        pytest.skip(f"the class {name} is not installed")
    for turn in range(runs):
        ended = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape",
                                document.name], cwd=document.parent, capture_output=True, text=True, errors="replace",
                               timeout=300)
        assert ended.returncode == 0, ended.stdout[-2000:]
        if bibliography and not turn:
            told = subprocess.run(["bibtex", document.stem], cwd=document.parent, capture_output=True, text=True,
                                  timeout=60)
            assert told.returncode == 0 and "entry type" not in told.stdout, told.stdout
    return document.with_suffix(".log").read_text(errors="replace")
