"""Archives by strangers: nothing leaves the folder, nothing is followed, nothing grows without bound, no traceback."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import struct
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repro.bundle import source
from repro.bundle.source import open_record, pack, unpack
from repro.core.errors import OutputError


def make(path: Path, *members: tuple[str, bytes], mode: int = stat.S_IFREG | 0o644) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            target.writestr(info, content)
    return path


def refused(path: Path, to: Path) -> str:
    to.mkdir(exist_ok=True)
    with pytest.raises(OutputError) as caught:
        unpack(path, to)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_packed_files_are_unpacked_unchanged(tmp_path: Path) -> None:
    files = {"a.json": b"{}", "trials/x/result.json": b"\x00\xff" * 1000, "empty": b""}
    pack(tmp_path / "x.zip", files)
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "x.zip", tmp_path / "out")
    assert {p.relative_to(tmp_path / "out").as_posix(): p.read_bytes()
            for p in (tmp_path / "out").rglob("*") if p.is_file()} == files


def test_the_folders_that_other_tools_write_are_no_files(tmp_path: Path) -> None:
    path = make(tmp_path / "x.zip", ("trials/", b""), ("trials/x/", b""), ("trials/x/result.json", b"{}"))
    unpack(path, tmp_path / "out")
    assert [p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.json")] == [
        "trials/x/result.json"]


def test_a_folder_that_a_file_manager_zipped_is_a_bundle(tmp_path: Path) -> None:
    path = make(tmp_path / "x.zip", ("run/", b""), ("run/plan.json", b"{}"), ("run/trials/x/result.json", b"{}"),
                ("run/.DS_Store", b"1"), ("__MACOSX/run/._plan.json", b"2"), ("run/trials/Thumbs.db", b"3"))
    unpack(path, tmp_path / "out")
    assert sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()) == [
        "plan.json", "trials/x/result.json"]


@pytest.mark.parametrize("name", [".x.zip.tmp", "x.zip"])
def test_a_link_in_the_folder_of_a_bundle_is_replaced_not_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "mine")
    pack(tmp_path / "out/x.zip", {"a": b"1"})
    assert (tmp_path / "mine").read_text() == "kept"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["x.zip"]
    assert not (tmp_path / "out/x.zip").is_symlink() and zipfile.is_zipfile(tmp_path / "out/x.zip")


def test_the_same_files_give_the_same_bytes_whatever_the_order_and_the_hour(tmp_path: Path) -> None:
    pack(tmp_path / "one.zip", {"a": b"1" * 100, "b": b"2"})
    time.sleep(0.01)
    pack(tmp_path / "two.zip", {"b": b"2", "a": b"1" * 100})
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a//b", "./a", "C:evil", "a\\..\\b", "a/\nb",
                                  "folder/", "x" * 500, "/".join("abcdefghijk")])
def test_names_outside_the_folder_are_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / "x.zip", ("fine", b"1"), (name, b"2"))
    assert "nothing was unpacked" in refused(path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR])
def test_links_and_special_files_are_refused(tmp_path: Path, kind: int) -> None:
    path = make(tmp_path / "x.zip", ("trials", b"/etc"), mode=kind | 0o777)
    assert "a link or special file; links are not followed" in refused(path, tmp_path / "out")


def test_a_name_twice_and_a_file_below_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        make(tmp_path / "x.zip", ("a", b"1"), ("a", b"2"))
    assert "occurs twice" in refused(tmp_path / "x.zip", tmp_path / "out")
    assert "is below another file" in refused(make(tmp_path / "y.zip", ("a", b"1"), ("a/b", b"2")), tmp_path / "out")


@pytest.mark.slow
def test_a_bomb_is_stopped_by_its_stated_size(tmp_path: Path) -> None:
    path = make(tmp_path / "x.zip", *((f"{n}", bytes(40 << 20)) for n in range(14)))
    assert path.stat().st_size < 1 << 20
    assert "would unpack to 560 MiB (limit 512)" in refused(path, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*")), "nothing was unpacked"


def test_a_bomb_is_stopped_by_its_ratio(tmp_path: Path) -> None:
    path = make(tmp_path / "x.zip", ("zeros", bytes(100 << 20)))
    assert "unpacks to more than the limit of a bundle" in refused(path, tmp_path / "out")
    assert (tmp_path / "out" / "zeros").stat().st_size <= 32 << 20


def test_a_bomb_with_a_false_size_is_stopped_too(tmp_path: Path) -> None:
    path = make(tmp_path / "x.zip", ("zeros", bytes(100 << 20)))
    raw = bytearray(path.read_bytes())
    entry = raw.rindex(b"PK\1\2")
    raw[entry + 24:entry + 28] = struct.pack("<L", 1000)
    path.write_bytes(raw)
    refused(path, tmp_path / "out")
    assert sum(p.stat().st_size for p in (tmp_path / "out").iterdir()) <= 32 << 20


def test_a_directory_of_stated_gigabytes_is_not_read(tmp_path: Path) -> None:
    end = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 9, 9, 64 << 20, 0, 0)
    (tmp_path / "x.zip").write_bytes(bytes(1000) + end)
    assert "its directory is larger than 12 MiB" in refused(tmp_path / "x.zip", tmp_path / "out")


def test_zip64_and_encryption_and_rare_methods_are_refused(tmp_path: Path) -> None:
    end = b"PK\6\7" + bytes(16) + b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 1, 1, 46, 0, 0)
    (tmp_path / "x.zip").write_bytes(bytes(100) + end)
    assert "zip64" in refused(tmp_path / "x.zip", tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "y.zip", "w", zipfile.ZIP_BZIP2) as target:
        target.writestr("a", b"1")
    assert "a method that bundles do not use" in refused(tmp_path / "y.zip", tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"PK", b"hello", bytes(1 << 16)])
def test_a_file_that_is_no_archive_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.zip").write_bytes(content)
    assert "not a bundle: not a zip, or truncated" in refused(tmp_path / "x.zip", tmp_path / "out")


def test_a_run_too_large_for_a_bundle_is_refused_when_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_MEMBERS", 2)
    with pytest.raises(OutputError, match="this run has 3 and 0 MiB"):
        pack(tmp_path / "x.zip", {"a": b"", "b": b"", "c": b""})
    assert os.listdir(tmp_path) == []  # noqa: PTH208  # names


SAMPLE = io.BytesIO()
with zipfile.ZipFile(SAMPLE, "w", zipfile.ZIP_DEFLATED) as sample:
    sample.writestr("plan.json", b'{"schema": 1}' * 20)
    sample.writestr("trials/t/result_1.txt", b":::MLLOG {}\n" * 50)
RAW = SAMPLE.getvalue()


@settings(max_examples=300, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, len(RAW) - 1), st.integers(0, 255)), min_size=1, max_size=8),
       cut=st.integers(0, 60))
def test_damaged_bytes_anywhere_give_one_line(tmp_path: Path, edits: list[tuple[int, int]], cut: int) -> None:
    raw = bytearray(RAW)
    for place, value in edits:
        raw[place] = value
    path = tmp_path / "fuzz.zip"
    path.write_bytes(raw[:len(raw) - cut] if cut < 20 else raw)
    with contextlib.suppress(OutputError), open_record(path) as folder:
        assert all(folder in p.parents for p in folder.rglob("*"))
