"""Data identity by manifest: prepared once, portable, checked at every run."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.core.errors import TrialError, UsageError
from repro.workloads.data import manifest, prepare
from repro.workloads.data.manifest import DataForm, Progress
from repro.workloads.data.prepare import hash_file
from tests.made_data import silent


class Letters(DataForm):
    """Text files of letters; the data set of these tests."""

    name = "letters"
    title = "letters"
    wanted = "files named *.txt"
    twin = "letters-synthetic"
    target = "none"
    licence = "none"
    source = "made up"

    def __init__(self) -> None:
        self.examined: list[str] = []

    def files(self, folder: Path) -> Sequence[str]:
        found = sorted(item.name for item in folder.glob("*.txt"))
        if not found:
            raise UsageError(f"{folder}: has no *.txt")
        return found

    def examine(self, folder: Path, file: str) -> None:
        self.examined.append(file)
        if not (folder / file).read_text().isalpha():
            raise UsageError(f"{folder / file}: has other characters than letters")

    def facts(self, folder: Path, files: Sequence[str]) -> Mapping[str, Any]:
        return {"train_samples": len(files), "eval_samples": 1}


class Converted(Letters):
    """Letters that are upper-cased first."""

    def source_folder(self, given: Path, own: Path, progress: Progress) -> Path:
        for item in given.glob("*.txt"):
            (own / item.name).write_text(item.read_text().upper())
        return own


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "given"
    found.mkdir()
    for index in range(30):
        (found / f"{index:02}.txt").write_text("abc" * (index + 1))
    return found


def test_the_same_files_elsewhere_are_the_same_data(folder: Path, tmp_path: Path, store: Path) -> None:
    first = prepare.prepare(Letters(), folder, silent)
    shutil.copytree(folder, tmp_path / "elsewhere")
    second = prepare.prepare(Letters(), tmp_path / "elsewhere", silent)
    assert first.sha256 == second.sha256
    assert first.folder != second.folder
    for name in ("manifest.json", "files.txt"):
        assert str(tmp_path) not in (store / "letters" / name).read_text()
    (folder / "00.txt").write_text("abd")
    assert prepare.prepare(Letters(), folder, silent).sha256 != first.sha256


def test_a_prepared_data_set_is_found_again_and_can_be_sent_to_a_worker(folder: Path) -> None:
    made = prepare.prepare(Letters(), folder, silent)
    found = manifest.find("letters")
    assert found is not None
    assert found.sha256 == made.sha256 and len(found.entries) == 30
    assert pickle.loads(pickle.dumps(found)).entries == found.entries
    assert b"entries" not in pickle.dumps(found)
    prepare.check_for_run(found)
    prepare.check_all(found, silent)


def test_a_changed_file_is_refused_by_name(folder: Path) -> None:
    made = prepare.prepare(Letters(), folder, silent)
    before = (folder / "07.txt").stat()
    (folder / "07.txt").write_text("xyz" * 8)
    with pytest.raises(TrialError, match=r"07\.txt in .* has changed.*sha256.*repro data prepare letters"):
        prepare.check_for_run(made)
    # Neither size nor time shows this change; hashing everything does.
    os.utime(folder / "07.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(TrialError, match=r"07\.txt in .* has changed"):
        prepare.check_all(made, silent)
    (folder / "07.txt").write_text("x")
    with pytest.raises(TrialError, match=r"07\.txt in .*it has 1 bytes, the manifest 24"):
        prepare.check_for_run(made)
    (folder / "07.txt").unlink()
    with pytest.raises(TrialError, match=r"07\.txt in .* cannot be read: No such file"):
        prepare.check_for_run(made)


def test_a_sample_of_files_is_hashed_although_nothing_seems_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepare.prepare(Letters(), folder, silent)
    read: list[str] = []
    monkeypatch.setattr(prepare, "hash_file", lambda path: read.append(path.name) or hash_file(path))
    prepare.check_for_run(made)
    assert len(set(read)) == len(read) == prepare.SAMPLE_FILES
    first = list(read)
    prepare.check_for_run(made)
    assert read[16:] == first  # the same files on the same day


def test_a_file_that_was_only_touched_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepare.prepare(Letters(), folder, silent)
    monkeypatch.setattr(prepare, "SAMPLE_FILES", 0)
    read: list[str] = []
    monkeypatch.setattr(prepare, "hash_file", lambda path: read.append(path.name) or hash_file(path))
    os.utime(folder / "03.txt", ns=(1, 1))
    prepare.check_for_run(made)
    again = manifest.find("letters")
    assert again is not None
    prepare.check_for_run(again)
    assert read == ["03.txt"]


def test_an_interrupted_preparation_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "SLICE", 4)
    form = Letters()

    def interrupt(what: str, done: int, total: int) -> None:
        if done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare.prepare(form, folder, interrupt)
    assert manifest.find("letters") is None
    seen = set(form.examined)
    (folder / "02.txt").write_text("changed")  # since: it is read again
    form.examined.clear()
    made = prepare.prepare(form, folder, silent)
    assert "02.txt" in form.examined
    assert len(form.examined) < 30 and len(seen) >= 8
    prepare.check_all(made, silent)
    assert not (made.home / prepare.PARTIAL).exists()


def test_a_wrong_file_is_named_and_leaves_no_manifest(folder: Path) -> None:
    (folder / "09.txt").write_text("12")
    with pytest.raises(UsageError, match=r"09\.txt: has other characters"):
        prepare.prepare(Letters(), folder, silent)
    assert manifest.find("letters") is None
    with pytest.raises(UsageError, match=r"nowhere: does not exist; letters needs files named"):
        prepare.prepare(Letters(), folder / "nowhere", silent)


def test_a_name_that_no_list_can_hold_is_refused(folder: Path) -> None:
    for name in (b"a\nb.txt", b"\xff.txt"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text("abc")
        with pytest.raises(UsageError, match="only printable characters in its name"):
            prepare.prepare(Letters(), folder, silent)
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).unlink()


def test_converted_files_are_kept_in_the_store(folder: Path, store: Path, tmp_path: Path) -> None:
    made = prepare.prepare(Converted(), folder, silent)
    assert (made.folder / "00.txt").read_text() == "ABC"
    store.rename(tmp_path / "moved")
    os.environ["REPRO_DATA"] = str(tmp_path / "moved")
    found = manifest.find("letters")
    assert found is not None
    prepare.check_all(found, silent)


@pytest.mark.parametrize("wrong", ["12", None], ids=["a wrong file", "no files"])
@pytest.mark.parametrize("form", [Letters(), Converted()], ids=["given files", "converted files"])
def test_a_failed_preparation_leaves_the_earlier_one(
    folder: Path, tmp_path: Path, store: Path, form: Letters, wrong: str | None
) -> None:
    made = prepare.prepare(Converted(), folder, silent)
    (tmp_path / "bad").mkdir()
    if wrong is not None:
        (tmp_path / "bad" / "00.txt").write_text(wrong)
    with pytest.raises(UsageError):
        prepare.prepare(form, tmp_path / "bad", silent)
    found = manifest.find("letters")
    assert found is not None and found.sha256 == made.sha256
    prepare.check_all(found, silent)
    prepare.prepare(Letters(), folder, silent)  # replaces it, converted files and all
    assert [item.name for item in store.iterdir()] == ["letters"]
    assert not (store / "letters" / manifest.OWN).exists()


def test_the_store_itself_is_no_source(folder: Path) -> None:
    made = prepare.prepare(Converted(), folder, silent)
    with pytest.raises(UsageError, match="name the folder that it was made from"):
        prepare.prepare(Letters(), made.folder, silent)
    prepare.check_all(made, silent)


def test_without_a_manifest_the_line_says_what_to_do(store: Path) -> None:
    with pytest.raises(TrialError) as caught:
        prepare.required(Letters())
    text = str(caught.value)
    for part in (str(store / "letters" / "manifest.json"), "files named *.txt", "letters-synthetic",
                 "repro data prepare letters --from FOLDER"):
        assert part in text
    assert "\n" not in text


def test_a_damaged_manifest_or_list_is_refused(folder: Path, store: Path) -> None:
    made = prepare.prepare(Letters(), folder, silent)
    text = (store / "letters" / "files.txt").read_text()
    (store / "letters" / "files.txt").write_text(text.replace("07.txt", "08.txt"))
    with pytest.raises(TrialError, match="is not the list that the manifest was made with"):
        _ = made.__class__(made.home, made.manifest, made.folder).entries
    (store / "letters" / "manifest.json").write_text("{")
    with pytest.raises(TrialError, match="repro data prepare letters"):
        manifest.find("letters")


def test_a_lost_table_of_times_means_that_every_file_is_hashed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepare.prepare(Letters(), folder, silent)
    (made.home / manifest.MTIMES).unlink()
    found = manifest.find("letters")
    assert found is not None
    read: list[str] = []
    monkeypatch.setattr(prepare, "hash_file", lambda path: read.append(path.name) or hash_file(path))
    prepare.check_for_run(found)
    assert len(read) == 30
    assert np.load(made.home / manifest.MTIMES).shape == (30,)
