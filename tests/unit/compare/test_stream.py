"""A stream's order is the data's own: pairs stay pairs, and the verdict says that the seed decides no order."""

from __future__ import annotations

from pathlib import Path

from repro.compare import Comparison, compare
from repro.record.result.results import Result
from tests.unit.compare.test_compare import make_plan_of, results, spread


def judged(folder: Path, ours: str, theirs: str) -> Comparison:
    """The primary contrast, DeepSpeed against DDP, of trials that read in these orders, each its own."""
    plan = make_plan_of(folder)
    orders = {cell.cell_id: ours if cell.choices.engine.kind == "deepspeed" else theirs for cell in plan.cells}
    found: list[Result] = [
        item.model_copy(update={"hashes": {**item.hashes, "data_order": item.cell_id},
                                "effective": {"input_order": orders[item.cell_id]}})
        for item in results(plan, spread(0.8))]
    return next(item for item in compare(plan, found) if item.primary)


def test_another_planned_order_is_no_pair(tmp_path: Path) -> None:
    made = judged(tmp_path, "planned", "planned")
    assert made.refused and "data order differ" in made.because
    assert not [text for text in made.cautions if "unpaired by order" in text]


def test_a_stream_is_judged_and_labelled(tmp_path: Path) -> None:
    made = judged(tmp_path, "stream", "planned")
    assert made.verdict == "faster", made.because
    (label,) = [text for text in made.cautions if "unpaired by order" in text]
    assert label.startswith("unpaired by order: the candidate reads the data in their own order")


def test_two_streams_are_both_named(tmp_path: Path) -> None:
    (label,) = [text for text in judged(tmp_path, "stream", "stream").cautions if "unpaired by order" in text]
    assert "the candidate and the baseline read the data" in label
