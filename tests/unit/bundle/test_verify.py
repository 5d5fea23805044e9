"""A modified record is reported with the places; an unmodified one is reported as sound."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import repro
from repro.board.read import read_entry
from repro.bundle import contents, source, verify_trials
from repro.bundle.contents import make_bundle, write_bundle
from repro.bundle.verify import verify
from repro.bundle.verify_files import Verification
from repro.bundle.verify_plan import check_plan
from repro.bundle.verify_trials import rederived
from repro.compare.design.calibration import twin_plan
from repro.core.errors import Exit, OutputError, RecordModified
from repro.core.files import read_model, write_model
from repro.record.derive.derive import derive
from repro.record.folder import index
from repro.record.folder.store import RunFolder, read_record
from repro.record.log.reading import read_log
from repro.record.result.parts import Network
from repro.record.result.reasons import RankFailed
from repro.record.result.results import Result
from repro.seams.launching import LaunchResult, RankEnd
from repro.suite.model import Trial
from tests.commands import ROOT
from tests.in_process import refusal, succeeded
from tests.records import SUITE, Course, make_record


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record = make_record(tmp_path_factory.mktemp("verify") / "run", only=8)
    index.seal(record.folder)
    return record.folder.root


def trial_of(run: Path, place: int = 0) -> Path:
    return sorted((run / "trials").iterdir())[place]


def kinds(run: Path) -> set[str]:
    return {item.kind for item in verify(run).problems}


def reseal(run: Path) -> None:
    index.seal(RunFolder(run))


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}, indent=1) + "\n")


def test_a_damaged_line_is_named_once_and_at_its_file(run: Path) -> None:
    (run / "incidents.jsonl").write_text("nonsense\n")
    reseal(run)
    assert [(item.place, item.kind) for item in verify(run).problems] == [("incidents.jsonl", "schema")]


def test_a_record_as_it_was_made_is_sound(run: Path) -> None:
    found = verify(run)
    assert found.problems == []
    assert found.checked["results derived from their log again"] == 8
    assert found.checked["hashes of files"] == sum(1 for item in index.members(run))
    assert found.notes == ["16 of 24 planned trials have no readable result"]
    assert found.answer == "incomplete" and len(found.missing) == 16 and not found.sound and found.unmodified
    assert found.exit_code == Exit.TRIAL_FAILED and "INCOMPLETE, without a result of " in found.text()


def test_a_record_of_which_trials_were_taken_out_is_incomplete(tmp_path: Path) -> None:
    """With their lines of the ledger, and a new index: nothing contradicts anything, but the plan names them."""
    root = tmp_path / "missed"
    with zipfile.ZipFile(ROOT / "docs/gallery/records/missed.zip") as source:
        source.extractall(root)
    assert verify(root).answer == "sound"
    lines = [json.loads(line) for line in (root / "ledger.jsonl").read_text().splitlines()]
    kept = {next(item["trial_id"] for item in lines if item["status"] == end) for end in ("ok", "missed")}
    (root / "ledger.jsonl").write_text("".join(
        f"{json.dumps(item)}\n" for item in lines if item["trial_id"] in kept))
    for trial in (root / "trials").iterdir():
        if trial.name not in kept:
            shutil.rmtree(trial)
    reseal(root)
    found = verify(root)
    assert found.answer == "incomplete" and len(found.missing) == 14 and not found.problems


def test_a_run_of_which_no_trial_has_begun_is_incomplete(run: Path) -> None:
    shutil.rmtree(run / "trials")
    (run / "trials").mkdir()  # as every run folder has it
    for name in ("environment.json", "ledger.jsonl", "parity.json"):
        (run / name).unlink()
    reseal(run)
    found = verify(run)
    assert (found.problems, found.answer, len(found.missing)) == ([], "incomplete", 24)
    with pytest.raises(OutputError, match="no trial is in this record yet"):
        read_record(run)


@pytest.mark.parametrize("terms", [None, {"pairs": 1, "margin": 0.05}])
def test_a_run_that_is_called_a_reproduction_to_leave_trials_out_is_verified_on_no_board(
    tmp_path: Path, terms: dict[str, float] | None
) -> None:
    """A reproduction has chosen trials; the fastest one of a run is such a choice."""
    root = tmp_path / "missed"
    with zipfile.ZipFile(ROOT / "docs/gallery/records/missed.zip") as source:
        source.extractall(root)
    record = read_record(root)
    best = min((item for item in record.results if item.tta_wall), key=lambda item: item.tta_wall or 0.0)
    kept = [place for place, trial in enumerate(record.plan.trials())
            if trial.repeat == best.repeat and trial.cell_id == best.cell_id]
    edit(root / "plan.json", kind="reproduction", terms=terms, order=[record.plan.order[place] for place in kept])
    lines = [json.loads(line) for line in (root / "ledger.jsonl").read_text().splitlines()]
    (root / "ledger.jsonl").write_text("".join(
        f"{json.dumps(item)}\n" for item in lines if item["trial_id"] == best.trial_id))
    for trial in (root / "trials").iterdir():
        if trial.name != best.trial_id:
            shutil.rmtree(trial)
    reseal(root)
    found = verify(root)
    if terms is None:
        assert [item.what for item in found.problems] == [
            "is a reproduction, but lacks the terms that one declares before it runs"]
    else:
        assert found.sound and "a reproduction of 1 trials of its suite" in " ".join(found.notes)
    write_bundle(root, tmp_path / "best.zip")
    entry, _ = read_entry(tmp_path / "best.zip", tmp_path, lambda _: "")
    assert entry.standing == ("modified" if terms is None else "not verified")
    assert terms is None or "1 trials that were chosen, and nothing in it shows that none was left out" in entry.why


@pytest.mark.parametrize("kind", ["calibration", "tuning"])
def test_a_run_that_is_called_something_else_is_modified(run: Path, kind: str) -> None:
    """What it is decides what is checked: the title of a calibration and the settings of a tuning are not."""
    edit(run / "plan.json", kind=kind)
    reseal(run)
    assert f"its kind is {kind}, which its suite and its cells are not" in [item.what for item in verify(run).problems]


def test_trials_left_out_of_a_calibration_are_missed(run: Path) -> None:
    record = read_record(run)
    twins = twin_plan(record.plan, record.plan.cells[:1], 6, 1)
    found = Verification("made up")
    check_plan(twins.model_copy(update={"order": twins.order[:-3]}), "", found)
    assert [item.what for item in found.problems if "lacks" in item.what] == [
        f"its order lacks 3 trials of its suite, the first of them seed {min(at for _, at in twins.order[-3:])} of "
        f"{twins.cells[min(twins.order[-3:], key=lambda at: (at[0], at[1]))[0]].label}"]


def derived_again(trial: Path) -> None:
    """Write the result that follows from the log of a trial as it is now."""
    log, stored = trial / "result_1.txt", read_model(trial / "result.json", Result)
    write_model(trial / "result.json", derive(read_model(trial / "trial.json", Trial), 1, read_log(log),
                                              LaunchResult((RankEnd(0, 0),), 1.0)))
    assert read_model(trial / "result.json", Result).status == stored.status


@pytest.mark.parametrize("kept", [slice(0, -1), slice(0, -3), slice(1, None)], ids=["end", "more", "beginning"])
def test_a_truncated_log_is_no_log_of_a_trial_that_ended_although_its_result_follows(run: Path, kept: slice) -> None:
    log = trial_of(run) / "result_1.txt"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[kept]))
    derived_again(trial_of(run))
    reseal(run)
    problem, = verify(run).problems
    assert problem.place.endswith("result_1.txt") and "is incomplete: it begins with" in problem.what


def test_a_log_that_does_not_say_of_which_trial_it_is_may_be_that_of_another_cell(run: Path) -> None:
    log = trial_of(run) / "result_1.txt"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if '"x_trial"' not in line))
    derived_again(trial_of(run))
    reseal(run)
    problem, = verify(run).problems
    assert problem.what == "does not state the trial that it is of"


def test_coreutils_reads_the_index(run: Path) -> None:
    assert os.system(f"cd {run} && sha256sum --quiet -c sha256sums.txt") == 0


def test_a_prettier_time_does_not_follow_from_the_log_even_under_a_new_index(run: Path) -> None:
    edit(trial_of(run) / "result.json", tta_wall=0.1)
    reseal(run)
    problem, = verify(run).problems
    assert problem.kind == "result"
    assert problem.place == f"trials/{trial_of(run).name}/result.json"
    assert "tta_wall is 0.1, its log gives" in problem.what


def test_the_report_of_a_bundle_says_that_a_figure_does_not_follow(run: Path, tmp_path: Path) -> None:
    result = trial_of(run) / "result.json"
    make_bundle(run, tmp_path / "right.zip", "CC0-1.0")
    changed = json.dumps(json.loads(result.read_text()) | {"tta_wall": 0.1}).encode()
    with zipfile.ZipFile(tmp_path / "right.zip") as right, zipfile.ZipFile(tmp_path / "wrong.zip", "w") as wrong:
        files = {name: right.read(name) for name in right.namelist()}
        place = next(name for name in files if name.endswith(f"{trial_of(run).name}/result.json"))
        before, files[place] = hashlib.sha256(files[place]).hexdigest(), changed
        for name, content in files.items():
            wrong.writestr(name, content.replace(before.encode(), hashlib.sha256(changed).hexdigest().encode()))
    for name, said in (("right", ""), ("wrong", "wrong.zip: MODIFIED, ")):
        ended = succeeded("report", tmp_path / f"{name}.zip", "--out", tmp_path / name)
        page = (tmp_path / name / "report.html").read_text()
        assert said in ended.stderr and ("MODIFIED" in ended.stderr) == ("MODIFIED, " in page) == bool(said)
        assert page.find("MODIFIED, ") < page.find('class="headline"'), "first of all"
        own, = repro.open(tmp_path / f"{name}.zip", unverified=True).report("html", tmp_path / f"{name}-own")
        assert Path(own).read_text() == page
    both = tmp_path / "right.zip", tmp_path / "wrong.zip"
    assert "report it alone" in refusal("report", *both, "--out", tmp_path / "both")


def test_a_failure_called_success_does_not_follow_from_the_log(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run", only=2, course=lambda trial: Course(hits_at=None))
    assert {item.status for item in record.results} == {"missed"}
    edit(record.folder.result(record.results[0].trial_id), status="ok")
    assert {"result", "ledger"} <= kinds(tmp_path / "run")


def test_a_log_that_was_changed_with_its_result_untouched_is_seen(run: Path) -> None:
    log = trial_of(run) / "result_1.txt"
    log.write_text(log.read_text().replace('"eval_accuracy", "value": 0.9', '"eval_accuracy", "value": 0.8'))
    reseal(run)
    assert "result" in kinds(run)


def test_an_evaluation_that_meets_the_target_is_the_last_even_if_log_and_result_agree(run: Path) -> None:
    folder, trial = RunFolder(run), next(iter(read_record(run).plan.trials()))
    log, target = folder.log(trial.trial_id, 1), trial.choices.stop.target
    lines = log.read_text().splitlines(keepends=True)
    second = [number for number, line in enumerate(lines) if '"eval_accuracy"' in line][1]
    lines[second] = re.sub(r'"value": [\d.]+', f'"value": {target}', lines[second], count=1)
    log.write_text("".join(lines))
    write_model(folder.result(trial.trial_id), rederived(trial, read_model(folder.result(trial.trial_id), Result), log))
    reseal(run)
    (problem,) = (item for item in verify(run).problems if item.kind == "result")
    assert "samples met the target, and the trial went on to" in problem.what


def test_a_trial_that_met_its_target_cannot_have_missed_it(run: Path) -> None:
    folder, trial = RunFolder(run), next(iter(read_record(run).plan.trials()))
    log = folder.log(trial.trial_id, 1)
    text = log.read_text().replace('"outcome": "success"', '"outcome": "missed"')
    log.write_text(text.replace('"status": "success"', '"status": "aborted"'))
    write_model(folder.result(trial.trial_id), rederived(trial, read_model(folder.result(trial.trial_id), Result), log))
    reseal(run)
    assert any("met the target, and the trial says that it missed" in item.what for item in verify(run).problems)


def test_time_that_is_not_conserved_is_found_if_log_and_result_agree(run: Path) -> None:
    log = trial_of(run) / "result_1.txt"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line.replace('"eval": 0.0', '"eval": 9.0') if "x_phases" in line else line
                           for line in lines))
    folder = RunFolder(run)
    record = read_record(run)
    trial = next(item for item in record.plan.trials() if item.trial_id == trial_of(run).name)

    stored = read_model(folder.result(trial.trial_id), Result)
    write_model(folder.result(trial.trial_id), rederived(trial, stored, log))
    reseal(run)
    assert kinds(run) == {"conservation"}


def test_a_seed_that_was_another_one_is_seen(run: Path) -> None:
    record = read_record(run)
    repeat = record.results[0].repeat
    for path in [RunFolder(run).trial(record.results[0].trial_id)]:
        for name in ("result_1.txt", "result.json"):
            text = (path / name).read_text()
            (path / name).write_text(text.replace(f'"w{repeat}"', '"another"'))
    reseal(run)
    assert kinds(run) == {"pairing"}


def test_a_trial_struck_from_the_ledger_or_from_the_folder_is_seen(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join(lines[1:]))
    reseal(run)
    assert kinds(run) == {"ledger"}
    (run / "ledger.jsonl").write_text("".join(lines))
    shutil.rmtree(trial_of(run))
    reseal(run)
    assert kinds(run) == {"ledger"}


def test_a_gate_that_was_taken_out_is_seen_under_a_new_index(run: Path) -> None:
    (run / "parity.json").unlink()
    reseal(run)
    assert [(item.place, item.kind) for item in verify(run).problems] == [("parity.json", "missing")]


def test_without_an_index_the_unchecked_parts_are_named(run: Path) -> None:
    (run / index.NAME).unlink()
    found = verify(run)
    assert found.unmodified and found.identity is None
    assert any("no index of hashes" in note for note in found.notes)


def test_a_trial_killed_before_its_log_began_is_sound_also_with_its_network(run: Path) -> None:
    trial = trial_of(run)
    path = trial / "result.json"
    stored = read_model(path, Result)
    for log in trial.glob("result_*.txt"):
        log.write_text("")
    network = Network(origin="emulated", frame_bytes=9000, node_of_rank=(0, 1), stated_bits_per_second=(1e9, 1e9))
    names = {name: getattr(stored, name) for name in ("trial_id", "cell_id", "repeat", "attempt")}
    write_model(path, Result(**names, status="crashed", network=network, reasons=(RankFailed(rank=1, exit_code=-9),)))
    ledger = run / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    said = {"status": "crashed", "reasons": json.loads(path.read_text())["reasons"]}
    next(line for line in reversed(lines) if line["trial_id"] == stored.trial_id).update(said)
    ledger.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    reseal(run)
    assert verify(run).problems == []
    log.unlink()  # as of one whose figures were not wanted
    reseal(run)
    assert [item.what for item in verify(run).problems] == ["is missing: every start has a log"]


def test_links_are_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (trial_of(run) / "rank0.log").unlink()
    (trial_of(run) / "rank0.log").symlink_to(tmp_path / "secret")
    assert any("links are not followed" in item.what for item in verify(run).problems)
    with pytest.raises(OutputError, match="links are not followed"):
        write_bundle(run, tmp_path / "x.zip")


def test_an_added_file_is_found_anywhere_in_a_bundle(run: Path, tmp_path: Path) -> None:
    make_bundle(run, tmp_path / "x.zip", "CC0-1.0")
    with zipfile.ZipFile(tmp_path / "x.zip", "a") as target:
        target.writestr("setup.py", "import os")
    assert [(item.place, item.kind) for item in verify(tmp_path / "x.zip").problems] == [("setup.py", "unlisted")]


def test_files_that_a_file_manager_left_are_no_part_of_a_record(run: Path, tmp_path: Path) -> None:
    (trial, *_) = (run / "trials").iterdir()
    for folder in (run, run / "trials", trial):
        (folder / ".DS_Store").write_bytes(b"\0")
    sums = index.read_sums(run / index.NAME) | {"trials/.DS_Store": "0" * 64}  # as an earlier version indexed it
    (run / index.NAME).write_text(index.text_of(sums))
    (run / "report").mkdir()
    (run / "report/report.html").write_text("")
    zipped = Path(shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path, run.name))
    for place in (run, zipped):
        found = verify(place)
        assert found.unmodified and "report" in next(note for note in found.notes if note.startswith("not part of"))


def test_a_modified_run_is_not_bundled(run: Path, tmp_path: Path) -> None:
    edit(trial_of(run) / "result.json", tta_wall=0.1)
    with pytest.raises(RecordModified, match="nothing was bundled"):
        make_bundle(run, tmp_path / "x.zip", "CC0-1.0")
    assert not (tmp_path / "x.zip").exists()


def test_a_bundle_replaces_no_other_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"notes\.txt: exists and is not this bundle; name another file"):
        make_bundle(run, tmp_path / "notes.txt", "CC0-1.0")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    first = make_bundle(run, tmp_path / "x.zip", "CC0-1.0")
    assert make_bundle(run, tmp_path / "x.zip", "CC0-1.0") == first
    assert sorted(path.name for path in tmp_path.iterdir() if path != run) == ["notes.txt", "x.zip"]


def test_a_bundle_is_a_crate_that_its_own_library_reads(run: Path, tmp_path: Path) -> None:
    from rocrate.rocrate import ROCrate

    from repro.bundle.source import open_record

    make_bundle(run, tmp_path / "x.zip", "https://spdx.org/licenses/CC0-1.0")
    with open_record(tmp_path / "x.zip") as folder:
        crate = ROCrate(folder)
        assert crate.license == "https://spdx.org/licenses/CC0-1.0"
        action, = [item for item in crate.get_entities() if item.type == "CreateAction"]
        assert action["instrument"]["name"] == "repro-harness"
        listed = {item.id for item in crate.get_entities() if item.type == "File"}
        assert {"plan.json", "suite.yaml", "ledger.jsonl"} <= listed
        assert all((folder / name).is_file() for name in listed)
        assert crate.dereference("plan.json")["sha256"] == index.read_sums(folder / index.NAME)["plan.json"]


def test_no_path_of_this_machine_and_no_secret_goes_into_a_bundle(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "planted-secret-0123")
    log = trial_of(run) / "rank0.log"
    log.write_text(f'File "{Path.home()}/x/y.py"\n{run}/trials\nkey planted-secret-0123 at http://u:pw-here@h/\n')
    reseal(run)
    made = make_bundle(run, tmp_path / "x.zip", "CC0-1.0")
    assert made.scrubbed == (f"trials/{trial_of(run).name}/rank0.log",)
    with zipfile.ZipFile(tmp_path / "x.zip") as source:
        everything = b"\n".join(source.read(name) for name in source.namelist())
    for bad in (b"planted-secret", b"pw-here", str(tmp_path).encode(), b"/x/y.py"[:3] + b"home"):
        assert bad not in everything


def test_a_run_larger_than_a_bundle_is_refused_before_it_is_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (trial_of(run) / "rank0.log").open("wb") as stream:
        stream.truncate(240 << 20)  # a hole: it takes no room, and would be read as zeros
    monkeypatch.setattr(source, "MAX_TOTAL_BYTES", 200 << 20)
    monkeypatch.setattr(contents, "read_bounded", lambda path, _: pytest.fail(f"{path} was read"))
    with pytest.raises(OutputError, match=r"this run has \d+ and 240 MiB"):
        contents.write_bundle(run, tmp_path / "x.zip")


def test_the_user_s_name_in_torch_s_cache_is_taken_out(run: Path, tmp_path: Path) -> None:
    (trial_of(run) / "rank0.log").write_text(f"{tempfile.gettempdir()}/torchinductor_{getuser()}/ab/c.py\n")
    reseal(run)
    make_bundle(run, tmp_path / "x.zip", "CC0-1.0")
    with zipfile.ZipFile(tmp_path / "x.zip") as source:
        assert source.read(f"trials/{trial_of(run).name}/rank0.log") == b"<temporary>/torchinductor/ab/c.py\n"


def test_a_success_called_late_that_ended_before_its_limit_is_seen_under_a_new_index(run: Path) -> None:
    folder, name = RunFolder(run), trial_of(run).name
    trial = next(item for item in read_record(run).plan.trials() if item.trial_id == name)
    events = read_log(folder.log(name, 1))
    late = derive(trial, 1, events, LaunchResult((), 600.0, timed_out=True))
    write_model(folder.result(name), late)
    lines = [json.loads(line) for line in folder.ledger.read_text().splitlines()]
    said = {"status": "timed_out", "reasons": json.loads(folder.result(name).read_text())["reasons"]}
    folder.ledger.write_text("".join(
        f"{json.dumps(item | said if item['trial_id'] == name else item)}\n" for item in lines))
    reseal(run)
    found = verify(run)
    assert [item.kind for item in found.problems] == ["ledger"], [item.text() for item in found.problems]
    assert f"{name} ended as 'timed_out' after " in found.problems[0].what and "its limit is " in found.problems[0].what


def test_a_secret_that_the_record_needs_stops_the_bundle(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_KEY", "stop_at_target")
    with pytest.raises(OutputError, match="is part of a name or value that the record needs"):
        make_bundle(run, tmp_path / "x.zip", "CC0-1.0")
    assert not (tmp_path / "x.zip").exists()


@pytest.mark.parametrize("name", ["plan.json", "environment.json", "ledger.jsonl", "parity.json", "trial.json",
                                  "result.json", "result_1.txt", index.NAME])
@settings(max_examples=12, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_file_holds_there_is_no_traceback(original: Path, tmp_path: Path, name: str, data: Any) -> None:
    root = tmp_path / "fuzzed"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(original, root)
    path = root / name if (root / name).exists() else trial_of(root) / name
    raw = path.read_bytes()
    kind = data.draw(st.sampled_from(["junk", "cut", "edit", "json", "swap"]))
    if kind == "junk":
        raw = data.draw(st.binary(max_size=200))
    elif kind == "cut":
        raw = raw[:data.draw(st.integers(0, len(raw)))]
    elif kind == "json":
        leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
        raw = json.dumps(data.draw(st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
            st.text(max_size=5), inner, max_size=3), max_leaves=10))).encode()
    elif kind == "swap":  # a value of another type, at any place
        old = data.draw(st.sampled_from([b"0", b"1", b"true", b"null", b'"ok"', b"[", b"{", b".", b":"]))
        raw = raw.replace(old, data.draw(st.sampled_from([b"null", b"[]", b"-1", b'"x"', b"1e999", b"{}"])),
                          data.draw(st.integers(1, 5)))
    else:
        place = data.draw(st.integers(0, len(raw) - 1))
        raw = raw[:place] + data.draw(st.binary(min_size=1, max_size=3)) + raw[place + 1:]
    changed = raw != path.read_bytes()
    path.write_bytes(raw)
    assert verify(root).unmodified != changed


def test_nothing_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no such run folder or bundle"):
        verify(tmp_path / "gone")
    with pytest.raises(OutputError, match="neither a run folder nor a bundle"):
        verify(tmp_path)


def long_log(run: Path, steps: int) -> Path:
    """A trial of so many steps in one block, log and result agreeing."""
    record = read_record(run)
    trial = next(item for item in record.plan.trials() if item.trial_id == trial_of(run).name)
    log = trial_of(run) / "result_1.txt"
    lines = log.read_text().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if '"x_steps"' in line)
    event = json.loads(lines[place].removeprefix(":::MLLOG "))
    event["value"] |= {"seconds": [0.012345678] * steps, "input_seconds": [1e-6] * steps, "loss": [2.5] * steps}
    lines[place] = f":::MLLOG {json.dumps(event)}\n"
    log.write_text("".join(lines))
    path = RunFolder(run).result(trial.trial_id)
    write_model(path, derive(trial, 1, read_log(log), LaunchResult((RankEnd(0, 0),), 1.0)))
    reseal(run)
    return log


@pytest.mark.slow
def test_a_long_log_is_derived_again_in_a_fraction_of_its_size(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = long_log(run, 300_000)
    monkeypatch.setattr(verify_trials, "MAX_HELD_BYTES", 8 << 20)
    assert log.stat().st_size > 7e6, "as lists it would be 30 MB"
    assert kinds(run) == {"conservation"}, "the figures are derived from it, and are what they were"


def test_a_file_too_large_to_be_read_is_reported_and_not_called_modified(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = long_log(run, 1000)
    cases = (("MAX_HELD_BYTES", 4096, "more events than fit into"), ("MAX_LOG_BYTES", 4096, "0 MiB exceed"))
    for name, limit, said in cases:
        with monkeypatch.context() as patch:
            patch.setattr(verify_trials, name, limit)
            told = [item.text() for item in verify(run).problems]
        assert any(said in text and "was not derived again" in text for text in told), told
        assert all(text.count(log.name) < 2 for text in told)


def test_a_trial_that_a_signal_ended_before_its_description_was_written_had_not_begun(tmp_path: Path) -> None:
    run = make_record(tmp_path / "run", only=1).folder
    names = [trial.trial_id for trial in read_record(run.root).plan.trials()]
    name = next(name for name in names if not run.trial(name).exists())
    run.trial(name).mkdir()
    (run.trial(name) / ".trial.json.tmp").write_text("{")
    index.seal(run)
    assert [item.text() for item in verify(run.root).problems] == []


def test_a_path_in_a_title_is_taken_out_and_keeps_no_run_from_being_bundled(tmp_path: Path) -> None:
    text = SUITE.replace("A sample for tests", "notes in /home/ann/sample/notes.md")
    run = make_record(tmp_path / "run", text, only=1).folder
    index.seal(run)
    write_bundle(run.root, tmp_path / "made.zip", "CC0-1.0")
    with zipfile.ZipFile(tmp_path / "made.zip") as archive:
        assert not [name for name in archive.namelist() if b"ann/" in archive.read(name)]
        assert b"<path>/notes.md" in archive.read("ro-crate-metadata.json")
    assert verify(tmp_path / "made.zip").unmodified


def test_a_run_killed_while_its_last_trial_ran_again_is_unmodified(tmp_path: Path) -> None:
    record = make_record(tmp_path / "run")
    complete = verify(record.folder.root)
    assert [item.kind for item in complete.problems] == ["missing"]  # every trial has ended, and no index was written
    last = record.attempts[-1]
    record.folder.append_attempt(last.model_copy(update={"attempt": last.attempt + 1, "status": "started"}))
    found = verify(record.folder.root)
    assert found.unmodified, found.problems
    assert "1 of 24 trials failed and were due to run again when the run ended" in found.notes
    assert found.answer == "incomplete" and len(found.missing) == 1
