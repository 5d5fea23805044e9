"""A results repository or any part of it: who made what, what is refused, nothing outside read or written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from repro.core import door
from repro.core.errors import UsageError
from repro.published.cells import as_result, batch_costs
from repro.published.mlperf import folder as mlperf_folder
from repro.published.mlperf.folder import Imported, import_folder
from tests.unit.published.made_logs import SYSTEM, log_lines, repository


def reasons(found: Imported) -> dict[str, str]:
    return {item.source: item.reason for item in found.refused}


def test_one_cell_per_system_and_benchmark(tmp_path: Path) -> None:
    repository(tmp_path)
    repository(tmp_path, system="other")
    repository(tmp_path, round_name="training_v4.1")
    found = import_folder(tmp_path)
    assert len(found.cells) == 3 and len({cell.cell_id for cell in found.cells}) == 3
    assert {cell.factors["round"] for cell in found.cells} == {"training_v4.0", "training_v4.1"}
    assert found.cells[0].label == "Acme box, resnet, training_v4.0"
    assert found.cells[0].factors == {
        "origin": "published", "round": "training_v4.0", "org": "Acme", "system": "box", "benchmark": "resnet",
        "division": "closed", "accelerator": "Chip 1", "accelerators": "16", "nodes": "2", "framework": "Frame 1.0",
        "batch.global": "256",
    }
    assert found.cells[0].score.minutes == pytest.approx(12.0) and found.cells[0].score.valid


@pytest.mark.parametrize("depth", range(7))
def test_any_part_of_a_repository_names_the_same_runs(tmp_path: Path, depth: int) -> None:
    folder = repository(tmp_path / "up")
    part = [folder / "result_0.txt", folder, *folder.parents][depth]
    found = import_folder(part)
    first = found.results[0]
    assert (first.round, first.org, first.system, first.benchmark) == ("training_v4.0", "Acme", "box", "resnet")
    assert first.cell_id == import_folder(tmp_path).results[0].cell_id
    # The description is next to `results/`: only an import from the organisation up may open it.
    assert (first.accelerator == "Chip 1") == (depth >= 4)
    assert ("no readable system description" in first.warnings) == (depth < 4)


def test_names_do_not_depend_on_how_the_folder_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = repository(tmp_path)
    monkeypatch.chdir(folder)
    expected = import_folder(folder.parent).results
    assert import_folder(Path("..")).results == expected
    assert import_folder(Path("../../box/.")).results == expected


def test_runs_are_numbered_as_their_files_are(tmp_path: Path) -> None:
    repository(tmp_path, {f"result_{index}.txt": "".join(log_lines(seed=index)) for index in (10, 2, 0)})
    found = import_folder(tmp_path)
    assert [(item.repeat, item.seed) for item in found.results] == [(0, 0), (1, 2), (2, 10)]


def test_a_folder_without_the_layout_goes_by_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "resnet"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text("".join(log_lines(org="Zeta")))
    result = import_folder(tmp_path).results[0]
    assert (result.org, result.system, result.benchmark, result.round) == ("Zeta", "mine", "resnet", "unknown")


def test_two_folders_are_never_one_cell(tmp_path: Path) -> None:
    for name in ("a", "b"):
        repository(tmp_path / name)
    found = import_folder(tmp_path)
    assert [cell.score.runs for cell in found.cells] == [5, 5]
    assert len({cell.cell_id for cell in found.cells}) == 2
    assert "(b/training_v4.0/Acme/results/box/resnet)" in {cell.label.partition("4.0 ")[2] for cell in found.cells}


def test_contradictions_of_log_and_folders_are_reported(tmp_path: Path) -> None:
    repository(tmp_path, {"result_0.txt": "".join(log_lines(benchmark="bert", org="Rival"))})
    warnings = import_folder(tmp_path).results[0].warnings
    assert any("the log names the benchmark 'bert', its folder 'resnet'" in text for text in warnings)
    assert any("the log names the organisation 'Rival', its folder 'Acme'" in text for text in warnings)


def test_a_refused_log_counts_against_its_system(tmp_path: Path) -> None:
    folder = repository(tmp_path)
    (folder / "result_0.txt").write_bytes(b"\0")
    cell = import_folder(tmp_path).cells[0]
    assert (cell.ok, cell.refused, cell.score.failed, cell.score.valid) == (4, 1, 1, True)
    assert cell.score.minutes == pytest.approx((12 + 13 + 14) / 3) and cell.score.dropped == (11.0,)
    (folder / "result_1.txt").write_text("hello")
    cell = import_folder(tmp_path).cells[0]
    assert (cell.score.minutes, cell.score.valid) == (None, False)


def test_a_factor_set_in_review_scales_the_score(tmp_path: Path) -> None:
    folder = repository(tmp_path)
    (folder / "scaling.json").write_text('{"scaling_factor": 1.25}')
    score = import_folder(tmp_path).cells[0].score
    assert (score.minutes, score.scaling_factor) == (pytest.approx(15.0), 1.25)
    (folder / "scaling.json").write_text('{"scaling_factor": -1}')
    found = import_folder(tmp_path)
    assert found.cells[0].score.minutes == pytest.approx(12.0)
    assert "has no valid scaling_factor" in found.refused[0].reason


@pytest.mark.parametrize(("content", "reason"), [
    (b"org: not JSON", "not JSON: Expecting value"), (b"[]", "the system description is not a JSON object"),
    (b"[" * 5000 + b"]" * 5000, "nested deeper than 32 levels"), (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
    (b"\xff", "not UTF-8"), (b"{\0}", "a NUL byte at byte 2"), (b" " * (1 << 20) + b"{}", "larger than 1 MiB"),
])
def test_a_damaged_system_description_costs_its_figures_only(tmp_path: Path, content: bytes, reason: str) -> None:
    repository(tmp_path)
    (tmp_path / "training_v4.0/Acme/systems/box.json").write_bytes(content)
    found = import_folder(tmp_path)
    assert reason in reasons(found)["training_v4.0/Acme/systems/box.json"]
    assert found.results[0].accelerators is None and found.cells[0].score.valid


def test_counts_that_are_none_stay_unknown(tmp_path: Path) -> None:
    repository(tmp_path)
    odd = SYSTEM | {"number_of_nodes": "two", "framework": "N/A", "accelerator_model_name": ["x"]}
    (tmp_path / "training_v4.0/Acme/systems/box.json").write_text(json.dumps(odd))
    result = import_folder(tmp_path).results[0]
    assert (result.nodes, result.accelerators, result.framework, result.accelerator) == (None, None, None, None)


def test_every_other_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = repository(tmp_path)
    (tmp_path / "README.md").write_text("hello")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref")
    weak = folder.parent / "weak" / "resnet"
    weak.mkdir(parents=True)
    (weak / "result_0.txt").write_text("".join(log_lines()))
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(folder / "result_9.txt")
    found = reasons(import_folder(tmp_path))
    assert found["README.md"].startswith("not a result log")
    assert found[".git"].startswith("a folder of version control")
    assert found["pipe"] == door.NO_FILE
    assert found["training_v4.0/Acme/results/box/resnet/result_9.txt"] == found["pipe"]
    assert found["training_v4.0/Acme/results/box/weak/resnet/result_0.txt"].startswith("a weak-scaling run")


def test_hpc_rounds_put_strong_before_the_benchmark(tmp_path: Path) -> None:
    folder = repository(tmp_path, {}, benchmark="strong/deepcam", round_name="hpc_results_v3.0")
    (folder / "result_0.txt").write_text("".join(log_lines(benchmark="deepcam", values=(0.83,))))
    result = import_folder(tmp_path).results[0]
    assert (result.round, result.system, result.benchmark) == ("hpc_v3.0", "box", "deepcam")
    assert result.target == {"": 0.82} and result.accelerator == "Chip 1"


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    secret = repository(outside)
    inside = tmp_path / "inside"
    folder = repository(inside)
    (folder / "result_5.txt").symlink_to(secret / "result_0.txt")
    (inside / "folder").symlink_to(outside)
    (inside / "loop").symlink_to(inside)
    (inside / "training_v4.0/Acme/systems/gone.json").symlink_to("/nowhere")
    found = import_folder(inside)
    assert len(found.results) == 5 and len(found.refused) == 4
    assert {item.reason for item in found.refused} == {door.LINK}
    assert found.cells[0].score.failed == 1  # a run that cannot be looked at is no run that succeeded


def test_names_that_are_no_text(tmp_path: Path) -> None:
    folder = repository(tmp_path, {}, system="b\u202eox", org="<script>")
    with open(os.fsencode(folder) + b"/result_\xff.txt", "wb") as stream:  # noqa: PTH123
        stream.write("".join(log_lines(org="\\ud800" + "x" * 10_000)).replace("\\\\ud800", "\\ud800").encode())
    found = import_folder(tmp_path)
    result = found.results[0]
    assert result.source.endswith("result_\\xff.txt") and (result.org, result.system) == ("<script>", "b\u202eox")
    assert all(item.model_dump_json() for item in found.results)
    assert max(len(text) for text in result.warnings) < 400


def test_an_import_holds_only_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlperf_folder, "MAX_HELD", 6_000)
    repository(tmp_path)
    found = import_folder(tmp_path)
    assert (len(found.results), len(found.refused)) == (3, 2)
    assert found.refused[0].reason.startswith("this import already has")


def test_a_folder_of_too_many_files_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MAX_ENTRIES", 4)
    repository(tmp_path)
    with pytest.raises(UsageError, match="has more than 4 files"):
        import_folder(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder or file"):
        import_folder(tmp_path / "no")
    assert import_folder(tmp_path) == Imported()


# ---- for comparisons


def test_results_in_the_form_of_our_own(tmp_path: Path) -> None:
    folder = repository(tmp_path)
    (folder / "result_4.txt").write_text("".join(log_lines(status="aborted")))
    found = import_folder(tmp_path)
    results = list(map(as_result, found.results))
    assert [item.status for item in results] == ["ok"] * 4 + ["missed"]
    assert [item.tta_wall for item in results] == [600.0, 660.0, 720.0, 780.0, None]
    assert {(item.tta_train, item.tta_cold) for item in results} == {(None, None)}
    assert results[0].samples_to_target == 12 * 1_281_167 and results[0].bracket is not None
    assert results[0].samples_per_second == pytest.approx(12 * 1_281_167 / 600)
    assert (results[0].final, results[0].best) == (0.76, 0.76)
    assert len({item.trial_id for item in results}) == 5
    assert {item.cell_id for item in results} == {cell.cell_id for cell in found.cells}


def test_batch_size_against_epochs_of_runs_that_got_there(tmp_path: Path) -> None:
    repository(tmp_path, {"result_0.txt": "".join(log_lines(batch=4096))}, system="large")
    repository(tmp_path, {"result_0.txt": "".join(log_lines(batch=256)),
                          "result_1.txt": "".join(log_lines(batch=256, status="aborted"))}, system="small")
    costs = batch_costs(import_folder(tmp_path).results)
    assert [(of.round, of.benchmark, of.unit) for of in costs] == [("training_v4.0", "resnet", "epochs")]
    assert [(cost.global_batch_size, cost.epochs) for cost in costs[0].costs] == [(256, 12), (4096, 12)]
