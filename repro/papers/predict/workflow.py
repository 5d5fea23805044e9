"""The scale model of a run or bundle, and its page."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from repro.bundle.source import open_record
from repro.core.errors import OutputError
from repro.papers.predict.epochs import read_epochs
from repro.papers.predict.predict import predict
from repro.papers.predict.prediction import ScaleModel, Scaling
from repro.record.folder.store import read_record


def predict_run(
    run: Path, processes: Sequence[int], scaling: str | None, fitted: Sequence[int], epochs: Path | None,
    out: Path | None,
) -> ScaleModel:
    """Return the scale model of a run; with `out`, also write its page.

    Raises:
        UsageError: there is no run, nothing to predict from, or no table of epochs.
        OutputError: the page cannot be written.
    """
    table = read_epochs(epochs) if epochs else None
    with open_record(run) as root:
        found = predict(read_record(root), str(run), processes, cast(Scaling | None, scaling), fitted, table)
    if out:
        # Reporters are plug-ins, so they are imported by name.
        page = importlib.import_module("repro.reporters.papers.scale_model").render(found)
        try:
            out.write_text(page, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{out}: {error.strerror or error}") from error
        sys.stderr.write(f"page: {out}\n")
    return found
