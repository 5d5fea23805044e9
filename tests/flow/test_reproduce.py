"""The real commands: run, bundle, verify, diff, reproduce; bitwise training twice; planted secrets found nowhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

from repro.record.folder.store import Record, read_record
from tests.commands import ROOT, command
from tests.plans import suite

pytestmark = pytest.mark.slow

# Stalls of a busy machine are added to invented times; the spread leaves room for them within the margins.
FAKE = suite("invented", """\
matrix:
  engine:
    - {kind: fake, step_seconds: 0.010, spread: 0.02}
    - {kind: fake, step_seconds: 0.014, spread: 0.02}
""", seeds=6, engine="fake", stop="{metric: top1, target: 0.9, max_epochs: 40}", launcher="inline")
REAL = suite("real", "matrix:\n", head="master_seed: 20151102\n", workload="digits-mlp", engine=None,
             optimizer="{kind: sgd, lr: 0.1, momentum: 0.9}",
             stop="{metric: top1, target: 0.5, max_epochs: 1, design: fixed_budget}", determinism="bitwise",
             timeout_seconds=100)
ENGINES = "[ddp, {kind: deepspeed, stage: 0}, {kind: deepspeed, stage: 1}, {kind: deepspeed, stage: 2}, " \
          "{kind: deepspeed, stage: 3}]"


def carried_out(folder: Path, name: str, suite: str, *arguments: str, **variables: str) -> Record:
    (folder / f"{name}.yaml").write_text(suite)
    code, _, error = command(folder, "run", f"{name}.yaml", "--no-mlflow", "--out", name, *arguments, **variables)
    assert code == 0, error
    return read_record(folder / name)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `one` and its bundle `one.zip`."""
    folder = tmp_path_factory.mktemp("reproduce")
    carried_out(folder, "one", FAKE)
    assert command(folder, "bundle", "one", "-o", "one.zip")[0] == 0
    return folder


def test_a_run_seals_itself_and_is_sound_and_so_is_its_bundle(fake: Path) -> None:
    for source in ("one", "one.zip"):
        code, out, _ = command(fake, "verify", source, "--json")
        assert code == 0
        assert json.loads(out)["checked"]["results derived from their log again"] == 12


def test_a_bundle_is_reproduced_on_the_machine_that_made_it(fake: Path) -> None:
    words, state = ("reproduce", "one.zip", "--margin", "0.25"), str(fake / "state")
    code, out, _ = command(fake, *words, "--out", "again", "--json", XDG_STATE_HOME=state)
    found = json.loads(out)
    assert (code, found["answer"], found["exit_code"]) == (0, "reproduced", 0)
    assert found["differences"] == []
    assert command(fake, "verify", "again")[0] == 0
    assert json.loads((fake / "again" / "reproduction.json").read_text())["source"] == "one.zip"
    code, _, error = command(fake, *words, "--out", "third", XDG_STATE_HOME=state)
    assert code == 0 and ("second reproduction of this record on this machine; together they spend up to 10 %; "
                          "earlier answers: reproduced") in error


def test_a_reproduction_in_looks_ends_at_the_first_that_answers(fake: Path) -> None:
    words = ("reproduce", "one.zip", "--until-settled", "--trials", "12", "--margin", "0.25")
    code, out, error = command(fake, *words, "--out", "looked", "--json")
    found = json.loads(out)
    assert (code, found["answer"]) == (0, "reproduced"), error
    assert found["look"]["n"] == 6 and found["declared"]["until_settled"] and found["declared"]["pairs"] == 12
    assert "judged at 6, 9, 12 until there is an answer" in error and "look at 6 pairs: reproduced" in error
    assert len(read_record(fake / "looked").results) == len(read_record(fake / "looked").plan.order) == 12
    code, out, _ = command(fake, "verify", "looked")
    assert code == 0, out


def test_an_interrupted_reproduction_in_looks_goes_on_to_the_next(fake: Path) -> None:
    words = ("reproduce", "one.zip", "--until-settled", "--trials", "12", "--margin", "0.25")
    assert command(fake, *words, "--out", "cut").code == 0
    found = read_record(fake / "cut")
    for trial in list(found.plan.trials())[-3:]:
        shutil.rmtree(found.folder.trial(trial.trial_id))
    resumed = command(fake, "reproduce", "one.zip", "--resume", "cut", "--force", "--json")
    assert resumed.code == 0, resumed.error
    assert json.loads(resumed.out)["look"]["n"] == 6 and len(read_record(fake / "cut").results) == 12


def test_terms_are_those_of_the_plan_whatever_a_file_beside_it_says(fake: Path) -> None:
    """An edited margin in `reproduction.json` changes no answer, and one in the plan is seen."""
    state = {"XDG_STATE_HOME": str(fake / "state of terms")}  # the user's record knows the terms, whatever their power
    assert command(fake, "reproduce", "one.zip", "--margin", "0.25", "--out", "edited", **state).code == 0
    place = fake / "edited" / "reproduction.json"
    place.write_text(place.read_text().replace('"margin": 0.25', '"margin": 0.9'))
    resumed = command(fake, "reproduce", "one.zip", "--resume", "edited", "--json", **state)
    assert resumed.code == 0 and json.loads(resumed.out)["declared"]["margin"] == 0.25, resumed.error
    plan = fake / "edited" / "plan.json"
    plan.write_text(plan.read_text().replace('"margin": 0.25', '"margin": 0.9'))
    assert command(fake, "verify", "edited").code == 3
    (fake / "edited" / "sha256sums.txt").unlink()  # as after a kill
    refused = command(fake, "reproduce", "one.zip", "--resume", "edited", **state)
    assert refused.code == 2 and "its terms are not those with which it began" in refused.error
    assert json.loads(place.read_text())["answer"] == "reproduced", "a refused resume loses no answer"


def test_looks_are_of_pairs_and_not_of_chosen_trials(fake: Path) -> None:
    pair = ",".join(trial.trial_id for trial in list(read_record(fake / "one").plan.trials())[:2])
    code, _, error = command(fake, "reproduce", "one.zip", "--until-settled", "--trials", pair, "--even-if-undecided")
    assert code == 2 and error.count("\n") == 1 and "--until-settled: chosen trials or blocks" in error


def test_a_modified_bundle_is_refused_in_one_line(fake: Path) -> None:
    with zipfile.ZipFile(fake / "one.zip") as source, zipfile.ZipFile(fake / "bad.zip", "w") as target:
        for item in source.infolist():
            text = source.read(item)
            target.writestr(item, text.replace(b'"tta_wall": 2', b'"tta_wall": 1') if "result.json" in item.filename
                            else text)
    code, out, _ = command(fake, "verify", "bad.zip")
    assert code == 3 and "was modified: its hash differs from the index" in out and "tta_wall is 1" in out
    code, _, error = command(fake, "reproduce", "bad.zip")
    assert code == 3 and error.count("\n") == 1 and "was modified" in error
    assert command(fake, "verify", "gone.zip")[0] == 2
    assert command(fake, "diff", "one", "suite.txt")[0] == 2


def test_another_machine_is_named_and_too_few_trials_are_inconclusive(fake: Path) -> None:
    """Another thread count, and another version of a library: what a second virtual environment would have."""
    info = fake / "site" / "sample_library-9.9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample-library\nVersion: 9.9.9\n")
    there = {"OMP_NUM_THREADS": "7", "PYTHONPATH": f"{ROOT}{os.pathsep}{fake / 'site'}"}
    assert command(fake, "reproduce", "one", "--trials", "2", "--out", "there", **there).code == 2
    code, out, _ = command(fake, "reproduce", "one", "--trials", "2", "--even-if-undecided", "--out", "there",
                           "--json", **there)
    told = {f"{item['area']}: {item['name']}: {item['second']}" for item in json.loads(out)["differences"]}
    assert (code, json.loads(out)["answer"]) == (3, "inconclusive"), "and that is no success"
    expected = {"settings: OMP_NUM_THREADS: 7", "libraries: sample-library: 9.9.9"}
    assert expected <= told
    code, out, _ = command(fake, "diff", "one.zip", "there", "--json")
    assert code == 0
    told = {f"{item['area']}: {item['name']}: {item['second']}" for item in json.loads(out)["differences"]}
    assert expected <= told


def second_venv(folder: Path, package: str, number: str) -> Path:
    """A virtual environment on top of this one with another version of a package written in Python.

    No index is asked, so the other version is a copy of the installed one that says another number, in its metadata
    and in its code; it is what that environment imports.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    site = next((folder / "lib").glob("python*/site-packages"))
    base = Path(distribution(package).locate_file("")).resolve()
    (site / "below.pth").write_text("".join(f"{place}\n" for place in dict.fromkeys(
        [str(base), *(entry for entry in sys.path if entry.endswith("site-packages"))])))
    shutil.copytree(base / package, site / package)
    now = version(package)
    info = next(base.glob(f"{package}-{now}.dist-info"))
    shutil.copytree(info, site / f"{package}-{number}.dist-info")
    metadata = site / f"{package}-{number}.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace(f"Version: {now}", f"Version: {number}", 1))
    with (site / package / "__init__.py").open("a") as code:
        code.write(f"\n__version__ = {number!r}\n")
    return folder / "bin" / "python"


def test_a_second_venv_and_another_thread_count_are_named(tmp_path: Path) -> None:
    """Real training, bitwise, then again by another interpreter's environment on two threads."""
    suite = REAL + "  engine: [ddp]\n  processes: [1]\n"
    carried_out(tmp_path, "first", suite, OMP_NUM_THREADS="1")
    assert command(tmp_path, "bundle", "first", "-o", "first.zip")[0] == 0
    other = second_venv(tmp_path / "venv", "click", "8.99.1")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    done = subprocess.run([str(other), "-m", "repro", "reproduce", "first.zip", "--out", "second", "--json"],
                          cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=600, check=False)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    told = {f"{item['area']}: {item['name']}: {item['first']} -> {item['second']}" for item in found["differences"]}
    expected = {f"libraries: click: {version('click')} -> 8.99.1", "settings: OMP_NUM_THREADS: 1 -> 2",
                "settings: OMP_NUM_THREADS (in the ranks): 1 -> 2"}
    assert expected <= told
    same = hashes(read_record(tmp_path / "first")) == hashes(read_record(tmp_path / "second"))
    assert found["answer"] == ("reproduced" if same else "not reproduced")
    assert done.returncode == (0 if same else 3)
    code, out, _ = command(tmp_path, "diff", "first.zip", "second")
    assert code == 0
    for line in ("libraries: 1 differ", f"click: {version('click')} -> 8.99.1", "OMP_NUM_THREADS: 1 -> 2",
                 "hardware: no difference", "hyper-parameters: no difference"):
        assert line in out, out
    print(f"answer with two threads: {found['answer']}; {sorted(told)}")


# ---- secrets


PLANTED = {
    "SOME_API_KEY": "smuggled-api-key-4711", "AWS_SECRET_ACCESS_KEY": "smuggled/aws+4711=",
    "OTHER": "smuggled-plain-4711",
    "MLFLOW_TRACKING_PASSWORD": "smuggled-password-4711", "MLFLOW_TRACKING_TOKEN": "smuggled-token-4711",
    "NCCL_AUTH_TOKEN": "smuggled-nccl-4711", "TORCH_HOME": "https://ann:smuggled-home-4711@host.invalid/x",
    "MLFLOW_TRACKING_URI": "http://ann:smuggled-uri-4711@127.0.0.1:9/api?token=smuggled-query-4711",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}


def holders(folder: Path, needle: bytes) -> list[str]:
    """Every file below `folder` whose bytes, or whose packed members' bytes, hold `needle`."""
    found = []
    for path in sorted(item for item in folder.rglob("*") if item.is_file()):
        raw = path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as source:
                raw += b"".join(source.read(name) for name in source.namelist())
        found += [path.relative_to(folder).as_posix()] * (needle in raw)
    return found


def test_a_credential_is_found_nowhere(tmp_path: Path) -> None:
    suite = FAKE.replace("seeds: 6", "seeds: 1").replace("matrix:", "matrix:\n  determinism: [seeded, free]")
    (tmp_path / "s.yaml").write_text(suite)
    printed = []
    steps = (("run", "s.yaml", "--out", "run"), ("report", "run", "--to", "mlflow"), ("bundle", "run", "-o", "x.zip"),
             ("reproduce", "x.zip", "--even-if-undecided", "--out", "again"), ("diff", "run", "again"),
             ("verify", "x.zip"), ("doctor",))
    for arguments in steps:
        _, out, error = command(tmp_path, *arguments, **PLANTED)
        printed.append(out + error)
    (tmp_path / "printed.txt").write_text("\n".join(printed))
    assert (tmp_path / "x.zip").is_file() and (tmp_path / "again" / "reproduction.json").is_file(), printed
    assert holders(tmp_path, b"smuggled") == []


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tracked run `first`, ddp and ZeRO 3 on two ranks, bitwise, secrets all around it."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "s.yaml").write_text(REAL + "  engine: [ddp, {kind: deepspeed, stage: 3}]\n  processes: [2]\n")
    code, out, error = command(folder, "run", "s.yaml", "--out", "first", **planted(folder))
    assert code == 0, error
    (folder / "printed.txt").write_text(out + error)
    return folder


def planted(folder: Path) -> dict[str, str]:
    return {**PLANTED, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}


def test_no_file_of_a_real_run_contains_a_credential(real: Path) -> None:
    code, packed, said = command(real, "bundle", "first", "-o", "x.zip", **planted(real))
    assert code == 0, said
    (real / "printed_by_bundle.txt").write_text(packed + said)
    assert (real / "mlflow.db").is_file()
    assert holders(real, b"smuggled") == []
    with zipfile.ZipFile(real / "x.zip") as source:
        for name in source.namelist():
            assert str(real).encode() not in source.read(name), name
            assert str(Path.home()).encode() + b"/" not in source.read(name), name


def test_healthy_engines_pass_the_gate_and_are_timed(real: Path) -> None:
    record = read_record(real / "first")
    assert record.parity and [item["problem"] for item in record.parity["findings"]] == ["", ""]
    assert [result.status for result in record.results] == ["ok", "ok"]
    assert len(record.attempts) == 2


# ---- bitwise


def hashes(record: Record) -> dict[str, tuple[str, ...]]:
    """Trial -> weights at steps 1, 10 and the end."""
    names = ("weights_step_1", "weights_step_10", "final_weights")
    return {item.trial_id: tuple(item.hashes[name] for name in names) for item in record.results}


def check_bits(folder: Path, count: int) -> None:
    """The run `first` moved its weights, and `repro reproduce` gets identical bits and reports this."""
    record = read_record(folder / "first")
    found = hashes(record)
    assert len(found) == count
    assert all(len(set(item)) == 3 for item in found.values())
    assert all(item.conservation_error is not None and item.conservation_error < 0.01 for item in record.results)
    code, out, error = command(folder, "reproduce", "first", "--out", "second", "--json")
    assert code == 0, out + error
    assert json.loads(out)["cells"] and not json.loads(out)["claims"], "judged bit for bit"
    assert hashes(read_record(folder / "second")) == found


def test_bitwise_runs_end_with_the_same_bits_and_reproduce_says_so(real: Path) -> None:
    check_bits(real, 2)


def test_every_engine_ends_with_the_same_bits_and_reproduce_says_so(tmp_path: Path) -> None:
    """ddp and ZeRO on two ranks."""
    carried_out(tmp_path, "first", REAL + f"  engine: {ENGINES}\n  processes: [2]\n")
    check_bits(tmp_path, 5)


@pytest.mark.parametrize("comm", ["ring", "tree"])
def test_bitwise_holds_under_our_own_algorithms(tmp_path: Path, comm: str) -> None:
    suite = REAL + f"  comm: [{comm}]\n  engine: [ddp]\n  processes: [2]\n"
    assert hashes(carried_out(tmp_path, "first", suite)) == hashes(carried_out(tmp_path, "second", suite))


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_bitwise_holds_for_every_engine_and_algorithm(tmp_path: Path, processes: int) -> None:
    from repro.core import registry

    comms = ", ".join(sorted(registry.names("comm")))
    suite = REAL + f"  comm: [{comms}]\n  engine: {ENGINES}\n  processes: [{processes}]\n"
    first, second = (hashes(carried_out(tmp_path, name, suite)) for name in ("first", "second"))
    assert first == second
    print(f"{processes} processes: {len(first)} trials hash-equal at steps 1, 10 and the end")
    assert len(first) >= 5


# ---- preflight checks


def test_a_machine_that_is_busy_is_refused_under_strict(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(FAKE)
    cores = os.cpu_count() or 1
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(cores)]
    try:
        code, _, error = command(tmp_path, "run", "s.yaml", "--no-mlflow", "--strict", "--out", "run")
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert code != 0 and "--strict: this machine is not fit for the run: its load is" in error
    assert not (tmp_path / "run").exists()  # nothing began, so nothing stays
