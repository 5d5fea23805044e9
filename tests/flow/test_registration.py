"""Plans and bundles that are signed with an SSH key, by the real commands and a real ssh-keygen."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from repro.record.folder.index import NAME
from tests.commands import command
from tests.plans import suite
from tests.unit.bundle.test_verify import reseal

pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")]
ENGINES = "matrix:\n  engine: [{kind: fake, step_seconds: 0.010}, {kind: fake, step_seconds: 0.014}]\n"
SUITE = suite("registered", ENGINES, seeds=2, engine="fake", launcher="inline",
              stop="{metric: top1, target: 0.9, max_epochs: 40}")


def key(folder: Path, name: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    return folder / name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two keys, a run whose plan is signed by `own`, and its signed bundle."""
    folder = tmp_path_factory.mktemp("registered")
    key(folder, "own"), key(folder, "other")
    (folder / "suite.yaml").write_text(SUITE)
    ended = command(folder, "run", "suite.yaml", "--no-mlflow", "--out", "run", "--register", "own")
    assert ended.code == 0 and "the plan is signed by own: run/registration.json.sig" in ended.error, ended.error
    assert command(folder, "bundle", "run", "-o", "run.zip", "--sign", "own").code == 0
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "here")
    return tmp_path / "here"


def test_the_owner_of_the_key_has_signed_bundle_and_plan(place: Path) -> None:
    code, out, error = command(place, "verify", "run.zip", "--signer", "own.pub", "--json")
    assert code == 0, error
    checked = json.loads(out)["checked"]
    assert checked["signatures by that key of the bundle"] == checked["signatures by that key of the plan"] == 1
    assert command(place, "verify", "run", "--signer", "own.pub").code == 0
    code, out, _ = command(place, "verify", "run.zip", "--signer", "other.pub")
    assert code == 3 and out.count("is no signature by the owner of other.pub") == 2
    (place / "run.zip.sig").unlink()
    shutil.rmtree(place / "run")
    code, out, _ = command(place, "verify", "run.zip", "--signer", "own.pub")
    assert code == 0, "the plan inside is signed"


@pytest.mark.parametrize("given", ["own", "suite.yaml"])
def test_what_is_no_public_key_is_one_line(place: Path, given: str) -> None:
    code, _, error = command(place, "verify", "run", "--signer", given)
    assert code == 2 and error.count("\n") == 1 and "must be a public SSH key" in error
    code, _, error = command(place, "bundle", "run", "-o", "again.zip", "--sign", "suite.yaml")
    assert code == 2 and "suite.yaml: cannot sign" in error


def test_a_plan_that_was_changed_or_registered_late_is_seen(place: Path) -> None:
    path = place / "run" / "registration.json"
    text = path.read_text()
    for field, value, said in (("trials", 3, "registers another plan"), ("at_ms", 4e12, "after the first trial began")):
        path.write_text(json.dumps(json.loads(text) | {field: value}))
        reseal(place / "run")
        code, out, _ = command(place, "verify", "run", "--signer", "own.pub")
        assert code == 3 and said in out and "is no signature by the owner" in out, out


def test_a_trial_that_was_left_out_of_a_registered_plan_is_missed(place: Path) -> None:
    """The registration names the trials, so a second plan without one of them contradicts it."""
    (place / "suite.yaml").write_text(SUITE.replace("seeds: 2", "seeds: 3"))
    (place / "registry").write_text("earlier\n")
    ended = command(place, "run", "suite.yaml", "--no-mlflow", "--out", "all", "--register", "registry")
    assert ended.code == 0 and "the plan is registered in registry" in ended.error
    assert command(place, "verify", "all", "--registered", "registry").code == 0
    for name in ("registration.json", "registration.json.sig"):
        shutil.copy(place / "run" / name, place / "all" / name)
    reseal(place / "all")
    code, out, _ = command(place, "verify", "all", "--registered", "registry")
    assert code == 3 and "registers another plan" in out and "is not in registry" in out


def test_a_resumed_run_registers_nothing(place: Path) -> None:
    code, _, error = command(place, "run", "--resume", "run", "--register", "own")
    assert code == 2 and "a plan is registered before its first trial" in error
    assert (place / "run" / NAME).exists()


def test_an_unsigned_record_is_not_taken_for_a_signed_one(place: Path) -> None:
    assert command(place, "run", "suite.yaml", "--no-mlflow", "--out", "plain").code == 0
    code, out, _ = command(place, "verify", "plain", "--signer", "own.pub")
    assert code == 3 and "neither the bundle nor its plan is signed" in out
    assert "plain: NOT AS SIGNED OR REGISTERED, 1 problem" in out and "MODIFIED" not in out
