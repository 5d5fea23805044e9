"""The notebooks of examples/ are executed as a user executes them, in a folder of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    shutil.copytree(notebook.parents[2] / "docs/gallery/records", tmp_path / "docs/gallery/records")
    book = nbformat.read(notebook, as_version=4)
    nbclient.NotebookClient(book, timeout=1800, kernel_name="python3",
                            resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in book.cells for output in cell.get("outputs", ()) if "data" in output]
    assert any("repro-display" in output["data"].get("text/html", "") for output in shown)
    assert not any(output["output_type"] == "error" for cell in book.cells for output in cell.get("outputs", ()))
