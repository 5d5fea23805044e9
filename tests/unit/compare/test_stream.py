"""A stream's order is the data's own: pairs stay pairs, and the verdict says that the seed decides no order."""

from __future__ import annotations

from pathlib import Path

from repro.bundle.verify_files import Verification
from repro.bundle.verify_trials import check_pairing
from repro.compare import Comparison, compare
from repro.record.result.results import Result
from repro.suite.planning.plan import Plan
from tests.unit.compare.test_compare import make_plan_of, results, spread


def read_in(plan: Plan, ours: str, theirs: str) -> list[Result]:
    """Trials of DeepSpeed and of DDP that read in these orders, each its own."""
    orders = {cell.cell_id: ours if cell.choices.engine.kind == "deepspeed" else theirs for cell in plan.cells}
    return [item.model_copy(update={"hashes": {**item.hashes, "data_order": item.cell_id},
                                    "effective": {"input_order": orders[item.cell_id]}})
            for item in results(plan, spread(0.8))]


def judged(folder: Path, ours: str, theirs: str) -> Comparison:
    """The primary contrast, DeepSpeed against DDP."""
    plan = make_plan_of(folder)
    return next(item for item in compare(plan, read_in(plan, ours, theirs)) if item.primary)


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


def test_verify_asks_streams_for_no_order_of_their_seed(tmp_path: Path) -> None:
    """Else an unmodified record with a stream is called modified, and cannot be bundled."""
    for order, said in ("stream", []), ("planned", ["data order of seed 0 differ"]):
        plan = make_plan_of(tmp_path, "trial:\n", f"trial:\n  input: {{order: {order}}}\n")
        found = Verification("made up")
        check_pairing(plan, read_in(plan, order, order), found)
        assert [item.what[:27] for item in found.problems][:1] == said
