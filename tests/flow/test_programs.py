"""Programs of a user's: run, judged, and caught when they state what cannot be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from repro.launchers.inline import Inline
from repro.program.process import DRAIN_SECONDS, GRACE_SECONDS, seed_of
from repro.record.derive.derive import derive
from repro.record.folder import post_mortem
from repro.record.folder.store import read_record
from repro.record.log.reading import log_damage, read_log
from repro.record.result.results import Result
from repro.runner.launching import entry_of
from repro.seams.launching import LaunchRequest
from repro.suite.model import Trial
from tests.commands import command, environment, start
from tests.plans import plan_file
from tests.waiting import LONG_SECONDS, until

SUITE = """\
suite: mine
seeds: {seeds}
trial:
  engine: {{kind: program, run: [python, train.py, "{{seed}}"{arguments}]{engine}}}
  evaluation: {{{reader}, metric: loss, direction: lower}}
  stop: {{target: 2.0{stop}}}
  timeout_seconds: {limit}
{more}
"""
READER = (r"pattern: 'step (?P<step>\d+) loss (?P<value>\S+)(?: at (?P<train_s>\S+))?', "
          r"progress: '^at (?P<train_s>\S+) step (?P<step>\d+)'")
HONEST = """\
import sys, time
begin = time.perf_counter()
for step in range(1, 6):
    time.sleep(0.03)
    print("step", step, "loss", 5 - step, "at", round(time.perf_counter() - begin, 4))
"""


def suite(folder: Path, code: str, *, seeds: int = 1, arguments: str = "", engine: str = "", stop: str = "",
          limit: float = 60, reader: str = READER, more: str = "") -> None:
    (folder / "train.py").write_text(code)
    (folder / "suite.yaml").write_text(SUITE.format(
        seeds=seeds, arguments=arguments, engine=engine, stop=stop, limit=limit, more=more,
        reader=reader))


def run_one(folder: Path, code: str, **how: object) -> Result:
    """Run one trial by the launcher, in this process, and derive its result from the log."""
    suite(folder, code, **how)  # type: ignore[arg-type]
    return launched(folder)


def launched(folder: Path) -> Result:
    os.environ["PATH"] = environment()["PATH"]
    plan = plan_file(folder / "suite.yaml")
    trial = next(iter(plan.trials()))
    request = LaunchRequest(
        entry=entry_of(trial.choices), processes=1, device="cpu", folder=folder / "run",
        timeout_seconds=trial.choices.timeout_seconds,
        payload={"trial": trial.model_dump(mode="json", by_alias=True), "log": "result_1.txt",
                 "base": str(folder), "code": "", "launched_ns": time.monotonic_ns()})
    before = post_mortem.take_snapshot(folder)
    outcome = post_mortem.explain(Inline().launch(request), replace(before, folder=folder / "run"))
    if outcome.ok:
        assert not log_damage(folder / "run" / "result_1.txt")
    return derive(trial, 1, read_log(folder / "run" / "result_1.txt"), outcome)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two cells and six seeds; one of them needs twice the time."""
    folder = tmp_path_factory.mktemp("programs")
    code = HONEST.replace("0.03", "0.03 * float(sys.argv[2])")
    suite(folder, code, seeds=6, arguments=', "{slow}"',
          more="  parameters: {slow: 1}\nmatrix: {parameters.slow: [1, 3]}")
    done = command(folder, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    assert done.code == 0, done.out + done.error
    return folder


def test_a_program_gets_its_verdict_and_it_says_what_nobody_checked(finished: Path) -> None:
    found = json.loads(command(finished, "compare", "run", "--metric", "tta_train", "--json").out)
    (item,) = found["comparisons"]
    assert item["verdict"] == "slower" and item["ratio"] > 1.5 and item["n"] == 6  # on a quiet machine 2.9
    assert any("self-reported" in text and "not gated" in text for text in item["cautions"])


def test_what_a_program_leaves_for_the_next_trial_is_said(tmp_path: Path) -> None:
    result = run_one(tmp_path, HONEST + "open('snapshot.pt', 'w').write('weights')\n")
    assert result.status == "ok"
    assert ["snapshot.pt" in item.text and "{run_dir}" in item.text for item in result.warnings] == [True]
    assert result.samples_to_target is None, "without `batch` steps are known, and no samples"


def test_a_program_that_leaves_more_files_than_are_looked_at_is_told_so(tmp_path: Path) -> None:
    result = run_one(tmp_path, HONEST + "for i in range(2001): open(f'part{i}.pt', 'w').close()\n")
    assert result.status == "ok" and ["was not looked at" in item.text for item in result.warnings] == [True]


@pytest.mark.slow
def test_a_program_that_ignores_its_seed_gets_no_verdict_on_samples(tmp_path: Path) -> None:
    code = HONEST.replace("0.03", "0.03 * float(sys.argv[2])").replace(
        '"loss", 5 - step,', '"loss", 5 - step + 0.0137291 * step,')
    suite(tmp_path, code, seeds=6, arguments=', "{slow}"',
          more="  batch: {global: 8}\n  parameters: {slow: 1}\nmatrix: {parameters.slow: [1, 3]}")
    done = command(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    assert done.code == 0 and "one training repeated 6 times" in done.out, done.out + done.error
    assert "one training repeated 6 times" in (tmp_path / "run" / "report" / "report.html").read_text()
    by = {name: json.loads(command(tmp_path, "compare", "run", "--metric", name, "--json").out)["comparisons"][0]
          for name in ("samples", "tta_train")}
    assert by["samples"]["verdict"] == "inconclusive" and by["tta_train"]["verdict"] == "slower"
    assert any("other seeds" in text for text in by["tta_train"]["cautions"])


@pytest.mark.slow
def test_a_trial_that_runs_again_later_takes_its_pair_out_of_the_times(tmp_path: Path) -> None:
    code = ("import os\nif sys.argv[1:] == ['SEED', '3'] and not os.path.exists('mended'):\n    sys.exit('broken')\n")
    suite(tmp_path, HONEST, seeds=7, arguments=', "{slow}"',
          more="  parameters: {slow: 1}\nmatrix: {parameters.slow: [1, 3]}\nmaster_seed: 5")
    trial = next(item for item in plan_file(tmp_path / "suite.yaml").trials() if item.repeat == 2)
    code = code.replace("SEED", str(seed_of(trial))).replace("'mended'", repr(str(tmp_path / "mended")))
    (tmp_path / "train.py").write_text(HONEST.replace("begin =", code + "begin =").replace(
        "0.03", "0.03 * float(sys.argv[2])"))
    assert command(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run").code == 1
    (tmp_path / "mended").touch()
    words = ("run", "--resume", "run", "--rerun-failed", "--no-mlflow")
    done = command(tmp_path, *words, "--allow-code", command(tmp_path, *words).error.split()[-1])
    assert done.code == 0, done.out + done.error
    (item,) = json.loads(command(tmp_path, "compare", "run", "--metric", "tta_train", "--json").out)["comparisons"]
    # On a busy machine six pairs may settle nothing.
    assert item["left_out"] == [2] and item["n"] == 6 and item["verdict"] in ("slower", "inconclusive")
    assert any("block" in text for text in item["cautions"]), item["cautions"]


@pytest.mark.slow
def test_its_record_is_sound_packed_and_shown(finished: Path) -> None:
    assert "sound" in command(finished, "verify", "run").out
    packed = command(finished, "bundle", "run", "-o", "mine.zip")
    assert packed.code == 0, packed.error
    assert "sound" in command(finished, "verify", "mine.zip").out
    page = (finished / "run" / "report" / "report.html").read_text()
    assert "self-reported" in page and str(finished) not in page


@pytest.mark.slow
def test_it_is_run_again_only_with_consent_and_from_the_source_in_the_record(finished: Path, tmp_path: Path) -> None:
    packed = tmp_path / "mine.zip"
    assert command(finished, "bundle", "run", "-o", str(packed)).code == 0
    refused = command(tmp_path, "reproduce", "mine.zip", "--trials", "1")
    assert refused.code == 2 and "python train.py" in refused.error and "Traceback" not in refused.error
    allowed = refused.error.split("--allow-code ")[1].split()[0]
    assert "is the hash of other code" in command(tmp_path, "reproduce", "mine.zip", "--allow-code", "0" * 64).error
    again = command(tmp_path, "reproduce", "mine.zip", "--trials", "2", "--even-if-undecided", "--allow-code",
                    allowed, "--out", "again")
    assert again.code in (0, 3), again.out + again.error
    assert {item.status for item in read_record(tmp_path / "again").results} == {"ok"}
    assert "sound" in command(tmp_path, "verify", "again").out
    resumed = command(finished, "run", "--resume", "run", "--no-mlflow")
    assert resumed.code == 2 and "--allow-code" in resumed.error


@pytest.mark.slow
def test_how_long_a_program_takes_is_unknown_until_a_pilot_tells(finished: Path) -> None:
    unknown = command(finished, "plan", "suite.yaml")
    assert "duration unknown, at most 12 min by timeout_seconds; one trial of each cell tells: repro run" in unknown.out
    known = command(finished, "plan", "suite.yaml", "--pilot", "run")
    assert "(as long as the trials of the pilot)" in known.out and "unknown" not in known.out
    assert json.loads(command(finished, "plan", "suite.yaml", "--json").out)["cost"]["full_budget_seconds"] is None


@pytest.mark.slow
def test_ones_own_unchanged_run_resumes_without_a_hash_and_any_other_asks(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    suite(tmp_path, HONEST, seeds=2)
    words = ("run", "--resume", "run", "--no-mlflow")
    assert command(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run", **state).code == 0
    shutil.rmtree(next((tmp_path / "run" / "trials").glob("*s1*")))
    asked = command(tmp_path, *words)
    assert asked.code == 2 and "--allow-code" in asked.error, "without the note it may be anybody's run"
    done = command(tmp_path, *words, **state)
    assert done.code == 0 and {item.status for item in read_record(tmp_path / "run").results} == {"ok"}, done.error
    shutil.copytree(tmp_path / "run", tmp_path / "moved")
    assert "--allow-code" in command(tmp_path, "run", "--resume", "moved", "--no-mlflow", **state).error
    note = tmp_path / "state" / "repro" / "begun.jsonl"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"permits": "0" * 64}) + "\n")
    assert "--allow-code" in command(tmp_path, *words, **state).error, "another command began there"


@pytest.mark.slow
@pytest.mark.parametrize("state", ["state", ""])
def test_the_command_that_an_interrupt_prints_resumes(tmp_path: Path, state: str) -> None:
    where = {"XDG_STATE_HOME": str(tmp_path / state) if state else os.devnull}
    suite(tmp_path, HONEST.replace("0.03", "0.3"), seeds=3)
    process = start(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run", **where)
    until(lambda: (tmp_path / "run" / "ledger.jsonl").exists(), process)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=LONG_SECONDS)[1]
    printed = error.split("resume with: ")[1].splitlines()[0].split()
    assert ("--allow-code" in printed) == (not state)
    done = command(tmp_path, *printed[printed.index("run"):], "--no-mlflow", **where)
    assert done.code == 0, done.error


def test_source_changed_in_a_record_is_found(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "run", tmp_path / "run")
    (source,) = (tmp_path / "run" / "code").glob("*/train.py")
    source.write_text(source.read_text() + "import os\n")
    found = command(tmp_path, "verify", "run")
    assert found.code != 0 and "is not the source of the record" in found.out


def test_a_seed_is_the_same_for_both_cells_and_unlike_the_next(finished: Path) -> None:
    seeds: dict[int, set[str]] = {}
    for trial in (finished / "run" / "trials").iterdir():
        found = Trial.model_validate_json((trial / "trial.json").read_text())
        seeds.setdefault(found.repeat, set()).add(str(seed_of(found)))
    assert all(len(each) == 1 for each in seeds.values()) and len(set.union(*seeds.values())) == 6


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    values = ["a b", 'quote " and \'', "line\nline", "$(touch pwned) `id` ; rm -rf x", "*", ""]
    code = "import json, sys\njson.dump(sys.argv[2:], open('seen.json', 'w'))\nprint('step 1 loss 1')\n"
    listed = "".join(f", {json.dumps(value)}" for value in values)
    assert run_one(tmp_path, code, arguments=listed).status == "ok"
    assert json.loads((tmp_path / "seen.json").read_text()) == values
    assert not (tmp_path / "pwned").exists()


CHEATS = {
    "a slow clock": (
        "import time\nfor s in range(1, 26):\n    time.sleep(0.1)\n    print('at', s * 0.05, 'step', s)\n"
        "print('step 30 loss 1 at', 1.5)\n", "invalid", "runs slow"),
    "a clock that is ahead": ("print('step 1 loss 1 at 100')\n", "invalid", "impossible"),
    "a crash that exits with 0": (
        "import traceback\nprint('step 1 loss 3')\ntry:\n    1 / 0\n"
        "except ZeroDivisionError:\n    traceback.print_exc()\n", "missed", ""),
    "a crash": ("print('step 1 loss 1')\nraise SystemExit('no such data')\n", "crashed", "no such data"),
    "a GPU without room": (
        "print('step 1 loss 1')\nraise SystemExit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate')\n",
        "out_of_memory", "CUDA out of memory"),
    "no evaluation": ("print('hello')\nprint('world')\n", "invalid",
                      "'; its output ends: hello | world"),
    "a pattern of other lines": (
        "print('epoch 1')\n", "invalid", "no evaluation seen; no line matches evaluation.pattern '"),
    "an evaluation after the end of what is read of a line": (
        "print(5000 * '-', 'step 1 loss 1')\n", "invalid", "of a line, 4,096 characters are read"),
    "nothing at all": ("", "invalid", "it printed nothing"),
    "one step twice": ("print('step 1 loss 3')\nprint('step 1 loss 1')\n", "invalid", "step 1 is evaluated twice"),
    "not a number at the end": (
        "import time\nprint('step 1 loss 3')\ntime.sleep(.1)\nprint('step 2 loss nan')\n", "diverged",
        "last value is nan"),
    "a value that is none": ("print('step 1 loss good')\n", "invalid", "good"),
    "code that changes itself": (
        "open('train.py', 'a').write('# more\\n')\nprint('step 1 loss 1')\n", "invalid",
        "the program's files are not those of the plan"),
    "an evaluation before the start": (
        "import time\nprint('step 1 loss 3')\ntime.sleep(.1)\nprint('begin')\ntime.sleep(.1)\nprint('step 2 loss 1')\n",
        "invalid", "evaluated before it said"),
    "a clock that goes back": (
        "import time\nprint('step 1 loss 3 at 0.01')\ntime.sleep(.1)\nprint('step 2 loss 1 at 0.005')\n", "invalid",
        "goes back"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_what_cannot_be_is_no_result(tmp_path: Path, name: str) -> None:
    code, status, reason = CHEATS[name]
    result = run_one(tmp_path, code, reader=READER + (", start: '^begin'" if "begin" in code else ""))
    assert (result.status, reason in result.reason) == (status, True), result.reason
    if name == "a crash that exits with 0":
        assert any("traceback" in item.words for item in result.warnings)


def test_output_that_comes_late_gives_bounds_on_a_time_and_counts_as_they_are(tmp_path: Path) -> None:
    held = ("import os, time\nprint('begin')\ntime.sleep(.3)\ntext = ''\nfor s in range(1, 6):\n    time.sleep(0.05)\n"
            "    text += f'step {s} loss {5 - s}\\n'\nos.write(1, text.encode())\n")
    result = run_one(tmp_path, held, reader=f"{READER}, start: '^begin'", more="  batch: {global: 1}")
    assert (result.status, result.samples_to_target, result.warnings) == ("ok", 3, ())
    assert result.tta_wall is not None and result.tta_wall > 0 and result.tta_wall_bounds == (0.0, result.tta_wall)


def test_a_start_that_comes_with_an_evaluation_leaves_the_time_since_the_process_began(tmp_path: Path) -> None:
    code = "import os, time\ntime.sleep(0.6)\nos.write(1, b'begin\\nstep 1 loss 1\\n')\n"
    result = run_one(tmp_path, code, reader=f"{READER}, start: '^begin'")
    assert result.status == "ok" and result.tta_wall_bounds is not None
    assert result.tta_wall_bounds[0] == 0 and result.tta_wall_bounds[1] >= 0.6


@pytest.mark.slow
def test_a_crash_below_torchrun_has_its_own_line_and_ends_a_doomed_run(tmp_path: Path) -> None:
    suite(tmp_path, "import sys\nprint('hello')\nraise RuntimeError(f'weights of {sys.argv[2]}'[:10])\n", seeds=4,
          arguments=', "{lr}"', more="  parameters: {lr: 0.1}\nmatrix: {parameters.lr: [0.1, 0.2]}")
    text = (tmp_path / "suite.yaml").read_text()
    (tmp_path / "suite.yaml").write_text(text.replace(
        "[python,", "[torchrun, --standalone, --nproc-per-node, '2', "))
    done = command(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run")
    results = read_record(tmp_path / "run").results
    assert {item.reason for item in results} == {"rank 0: exit code 1: RuntimeError: weights of"}
    assert done.code == 1 and len(results) == 2
    assert "stopped after 2 trials: the first of every cell crashed alike" in done.out + done.error


@pytest.mark.slow
def test_a_binary_among_its_files_travels_in_a_bundle(tmp_path: Path) -> None:
    suite(tmp_path, HONEST, engine=', files: ["**/*.py", model]')
    binary = bytes(range(256)) * 20
    (tmp_path / "model").write_bytes(binary)
    assert command(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "run").code == 0
    packed = command(tmp_path, "bundle", "run", "-o", "mine.zip")
    assert packed.code == 0, packed.error
    with zipfile.ZipFile(tmp_path / "mine.zip") as bundle:
        assert [bundle.read(name) for name in bundle.namelist() if name.endswith("/model")] == [binary]
    assert "sound" in command(tmp_path, "verify", "mine.zip").out


NAPS = """\
suite: naps
seeds: 6
trial:
  engine: {kind: program, run: [sh, -c, "sleep $NAP"], files: [], environment: {NAP: "{t}", OMP_NUM_THREADS: "{t}"}}
  parameters: {t: 0.1}
  stop: {design: end}
matrix: {parameters.t: [0.1, 1.0]}
primary: {candidate: {parameters.t: 1.0}, baseline: {parameters.t: 0.1}}
"""


@pytest.mark.slow
def test_of_a_program_without_evaluation_only_times_are_compared(tmp_path: Path) -> None:
    (tmp_path / "naps.yaml").write_text(NAPS)
    done = command(tmp_path, "run", "naps.yaml", "--no-mlflow", "--out", "run")
    assert done.code == 0, done.error
    (found,) = json.loads(command(tmp_path, "compare", "run", "--json").out)["comparisons"]
    assert (found["metric"], found["verdict"], found["n"]) == ("run_time", "slower", 6)
    assert found["differs"] == [], "the factor itself is no further difference"
    assert not any("seed" in text for text in found["cautions"])
    assert any("only times are compared" in text for text in found["cautions"])
    assert {item.status for item in read_record(tmp_path / "run").results} == {"ok"}
    assert "sound" in command(tmp_path, "verify", "run").out
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "Libraries of the harness, not of the programs" in page


def test_a_program_that_states_no_position_has_no_samples(tmp_path: Path) -> None:
    result = run_one(tmp_path, "import time\nfor s in range(1, 6):\n    time.sleep(0.03)\n    print('loss', 5 - s)\n",
                     reader=r"pattern: 'loss (?P<value>\S+)'")
    assert result.status == "ok" and result.tta_wall is not None and len(result.curve) == 5
    assert (result.samples_to_target, result.epochs_to_target, result.samples) == (None, None, None)


BAR = """\
import sys, time
time.sleep(0.5)
print("Map: 100%|#####| 10/10 [00:00<00:00]", file=sys.stderr)
sys.stderr.write("\\r  0%|          | 0/4 [00:00<?, ?it/s]")
sys.stderr.flush()
time.sleep(0.1)
print("\\n{'eval_loss': 0.5, 'epoch': 1.0}")
"""


@pytest.mark.parametrize("says", [True, False])
def test_a_ready_pattern_knows_the_start_by_an_unended_bar_or_says_that_imports_are_on_the_clock(
    tmp_path: Path, says: bool,
) -> None:
    suite(tmp_path, BAR if says else BAR.replace("/4 [00", "/4 <00"), reader="pattern: huggingface-trainer")
    text = (tmp_path / "suite.yaml").read_text().replace("metric: loss", "metric: eval_loss")
    (tmp_path / "suite.yaml").write_text(text)
    result = launched(tmp_path)
    assert result.status == "ok" and result.tta_wall is not None
    if says:
        assert result.startup_seconds is None and result.init_seconds is not None and result.init_seconds >= 0.5
        assert result.warnings == ()
    else:
        assert result.startup_seconds is not None and 0.5 <= result.startup_seconds <= result.tta_wall
        assert ["the start of its process" in item.words for item in result.warnings] == [True]


def test_a_command_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    suite(tmp_path, HONEST)
    text = (tmp_path / "suite.yaml").read_text().replace("[python,", "[pyhton9,")
    (tmp_path / "suite.yaml").write_text(text)
    result = launched(tmp_path)
    assert result.status == "crashed" and "command not found: 'pyhton9'" in result.reason
    done = command(tmp_path, "run", "suite.yaml", "--no-mlflow", "--out", "none")  # before anything is started
    assert done.code == 2 and "command not found: 'pyhton9'" in done.error and not (tmp_path / "none").exists()


LEFT = """\
suite: left
seeds: 1
trial:
  engine: {kind: program, run: [sh, -c, "sleep 0.1; sleep 30 &"], files: []}
  stop: {design: end}
"""


def test_its_time_ends_with_it_whatever_it_leaves_running(tmp_path: Path) -> None:
    """A daemon that keeps its output is waited for, found and ended after the time has ended."""
    (tmp_path / "suite.yaml").write_text(LEFT)
    began = time.monotonic()
    result = launched(tmp_path)
    assert result.status == "ok" and result.run_seconds is not None
    assert 0.1 <= result.run_seconds <= time.monotonic() - began - DRAIN_SECONDS


@pytest.mark.slow
def test_what_ignores_its_end_at_the_target_has_the_time_of_its_target(tmp_path: Path) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{HONEST}time.sleep(60)\n"
    began = time.monotonic()
    result = run_one(tmp_path, code, stop=", design: stop_at_target")
    assert result.status == "ok" and result.tta_wall is not None and result.run_seconds is not None
    assert result.tta_wall <= result.run_seconds <= time.monotonic() - began - GRACE_SECONDS


def test_it_is_ended_at_its_target_if_the_suite_says_so(tmp_path: Path) -> None:
    code = HONEST.replace("range(1, 6)", "range(1, 2000)")
    result = run_one(tmp_path, code, stop=", design: stop_at_target, confirm_evals: 2", more="  batch: {global: 1}")
    assert result.status == "ok" and result.samples_to_target == 4 and len(result.curve) < 1000
    assert result.bracket is not None and (result.bracket.miss_samples, result.bracket.hit_samples) == (2, 3)


ESCAPING = """\
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open("child", "w").write(str(child.pid))
print("step 1 loss 3")
time.sleep(600)
"""


@pytest.mark.slow
def test_at_its_limit_nothing_of_it_is_left(tmp_path: Path) -> None:
    result = run_one(tmp_path, ESCAPING, limit=3)
    assert result.status == "timed_out" and len(result.curve) == 1
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_and_the_run_is_resumed(tmp_path: Path) -> None:
    suite(tmp_path, ESCAPING, seeds=2)
    started = subprocess.Popen(
        [sys.executable, "-m", "repro", "run", "suite.yaml", "--no-mlflow", "--out", "run"], cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    try:
        until(lambda: (tmp_path / "child").exists())
        time.sleep(0.3)
        started.send_signal(signal.SIGINT)
        assert started.wait(LONG_SECONDS) == 130
    finally:
        with suppress(ProcessLookupError):
            started.kill()
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))
    assert [item.status for item in read_record(tmp_path / "run").attempts] == ["interrupted"]


def test_watch_and_its_own_start_are_read(tmp_path: Path) -> None:
    code = ("import time\nfrom repro import watch\ntime.sleep(0.5)\nwith watch.run():\n    for n in range(1, 6):\n"
            "        time.sleep(0.02)\n        watch.step(n)\n        watch.evaluated(5 - n)\n")
    result = run_one(tmp_path, code, reader="reader: watch")
    assert result.status == "ok", result.reason
    assert result.tta_wall is not None and result.tta_cold is not None
    assert 0.05 < result.tta_wall < 0.4 < 0.5 < result.tta_cold
    assert len(result.curve) == 5


@pytest.mark.parametrize("code", [
    "import time\ntime.sleep(0.5)\nprint('step 1 loss 1 at 0.01')\n",
    "import time\nprint('step 1 loss 3 at 0.01')\ntime.sleep(0.5)\nprint('step 2 loss 1')\n"])
def test_an_own_clock_that_cannot_be_compared_is_no_clock(tmp_path: Path, code: str) -> None:
    result = run_one(tmp_path, code)
    assert result.status == "ok" and result.tta_train is None and result.tta_wall is not None


def test_what_it_prints_is_kept_up_to_a_bound_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted_9f8e7d6c5b4a")
    monkeypatch.setattr("repro.program.main.MOST_OUTPUT", 1000)
    code = "import os\nprint('x' * 5000)\nprint('token', os.environ['HF_TOKEN'])\n"
    result = run_one(tmp_path, code, engine=", passes: [HF_TOKEN]")
    assert result.status == "invalid" and "hf_planted" not in result.reason and "token" in result.reason
    assert (tmp_path / "run" / "rank0.log").stat().st_size < 1100


def test_a_suite_inside_a_record_starts_nothing(finished: Path) -> None:
    for verb in ("run", "plan"):
        refused = command(finished, verb, "run/suite.yaml")
        assert refused.code == 2 and "this suite is in a record" in refused.error, refused.error


def test_a_start_that_never_comes_is_no_start(tmp_path: Path) -> None:
    result = run_one(tmp_path, HONEST, reader=READER + ", start: '^never'")
    assert result.status == "invalid" and "never said that its training begins" in result.reason


def test_under_a_terminal_a_program_prints_at_once(tmp_path: Path) -> None:
    code = HONEST.replace("import sys, time", "import sys, time\nassert sys.stdout.isatty()")
    assert run_one(tmp_path, code, engine=", terminal: true").status == "ok"


@pytest.mark.parametrize(("confirm", "status"), [("", "ok"), (", confirm_evals: 2", "invalid")])
def test_two_ranks_that_print_one_epoch_confirm_nothing(tmp_path: Path, confirm: str, status: str) -> None:
    code = "for epoch, loss in enumerate((5, 1.9, 3, 4, 1, 1), 1): print(f'epoch {epoch} loss {loss}\\n' * 2, end='')"
    reader = r"pattern: 'epoch (?P<epoch>\d+) loss (?P<value>\S+)'"
    result = run_one(tmp_path, code, stop=confirm, reader=reader)
    text = result.reason if status == "invalid" else str(result.warnings)
    assert result.status == status and f"epoch {2 if confirm else 1} is evaluated twice in a row" in text


def test_under_a_terminal_lines_of_several_processes_stay_whole(tmp_path: Path) -> None:
    code = """\
from multiprocessing import Barrier, Process
def rank(number, barrier):
    for step in range(1, 301):
        barrier.wait()
        print("step" if number == 0 else "at rank 1 of step", step, "loss", 300 - step)
if __name__ == "__main__":
    barrier = Barrier(2)
    ranks = [Process(target=rank, args=(number, barrier)) for number in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
"""
    reader = r"pattern: '^step (?P<step>\d+) loss (?P<value>\S+)'"
    assert run_one(tmp_path, code, engine=", terminal: true", reader=reader).status == "ok"
    text = (tmp_path / "run" / "rank0.log").read_text()
    assert all(line.endswith(f" loss {300 - int(line.split()[-3])}") for line in text.splitlines())



def test_it_sees_only_the_environment_that_the_suite_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "planted")
    monkeypatch.setenv("WANTED", "yes")
    code = "import json, os\njson.dump(dict(os.environ), open('seen.json', 'w'))\nprint('step 1 loss 1')\n"
    run_one(tmp_path, code, engine=', passes: [WANTED], environment: {MODE: "{seed}x"}')
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert "SECRET_TOKEN" not in seen and "RANK" not in seen and seen["WANTED"] == "yes"
    assert seen["MODE"].endswith("x") and seen["MODE"][:-1].isdigit()
