"""Source of classes from files: what belongs to it, and that what was hashed is what runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core.errors import OutputError, UsageError
from repro.core.source_code import (
    NotAllowed,
    SourceCode,
    allow,
    allowed,
    import_class,
    is_file_kind,
    read_source,
    stored_source,
)

NET = """\
import json
import helper
from parts.inner import deep
from parts import late as renamed
import parts.inner as whole

class Net:
    here = (helper.NAME, deep(), renamed.VALUE, whole.deep())

    def lazily(self):
        from helper import NAME
        import only_lazy
        return NAME, only_lazy.NAME
"""


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / f"{name.replace('__', '/') if not name.startswith('_') else name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def project(root: Path, name: str) -> SourceCode:
    """A class that uses modules beside it at once and later, a package among them, which all know `name`."""
    write(root, net=NET, helper=f"NAME = {name!r}\n", only_lazy=f"NAME = {name!r} * 2\n", unused="1 / 0\n",
          parts__inner="from .late import VALUE\nimport helper\ndef deep():\n    return helper.NAME + VALUE\n",
          parts__late="VALUE = 'late'\n")
    (root / "parts/__init__.py").write_text("")
    (root / "json.py").write_text("raise SystemExit('the standard library comes first')\n")
    return read_source(root / "net.py")


def test_a_source_is_the_file_and_the_modules_beside_it_that_it_imports(tmp_path: Path) -> None:
    source = project(tmp_path / "a", "a")
    assert sorted(source.files) == ["helper.py", "net.py", "only_lazy.py", "parts/__init__.py", "parts/inner.py",
                                    "parts/late.py"]
    assert project(tmp_path / "b", "a").sha256 == source.sha256, "the place does not count"
    assert project(tmp_path / "c", "c").sha256 != source.sha256, "a module beside it counts"


def test_two_files_of_one_name_keep_their_own_modules_also_when_they_import_late(tmp_path: Path) -> None:
    sources = [project(tmp_path / name, name) for name in ("x", "y")]
    for source in sources:
        allow(source)
    one, other = (import_class("net.py:Net", source.sha256) for source in sources)
    assert one.here == ("x", "xlate", "late", "xlate") and other.here == ("y", "ylate", "late", "ylate")
    assert one().lazily() == ("x", "xx") and other().lazily() == ("y", "yy")


def test_a_file_named_like_a_module_of_the_standard_library_does_not_hide_it(tmp_path: Path) -> None:
    write(tmp_path, json="import json\nclass Net:\n    text = json.dumps([1])\n")
    source = read_source(tmp_path / "json.py")
    allow(source)
    assert import_class("json.py:Net", source.sha256).text == "[1]"


def test_what_runs_is_what_was_hashed(tmp_path: Path) -> None:
    source = project(tmp_path, "before")
    for name in ("helper.py", "parts/inner.py", "parts/late.py"):
        (tmp_path / name).write_text("NAME = VALUE = 'after'\ndef deep():\n    return 'after'\n")
    allow(source)
    assert import_class("net.py:Net", source.sha256).here == ("before", "beforelate", "late", "beforelate")
    assert not (tmp_path / "__pycache__").exists(), "nothing is written beside the user's files"


def test_files_that_import_each_other_are_one_source(tmp_path: Path) -> None:
    write(tmp_path, a="def later():\n    import b\n    return b.B\nclass A: pass\n", b="import a\nclass B(a.A): pass\n")
    one, other = read_source(tmp_path / "a.py"), read_source(tmp_path / "b.py")
    assert one.sha256 == other.sha256
    allow(one)
    assert issubclass(import_class("b.py:B", other.sha256), import_class("a.py:A", one.sha256))


def test_nothing_is_imported_that_was_not_allowed(tmp_path: Path) -> None:
    write(tmp_path, net=f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Net: pass\n")
    source = read_source(tmp_path / "net.py")
    assert allowed(source.sha256) is None
    with pytest.raises(NotAllowed):
        import_class("net.py:Net", source.sha256)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("text", "said"), [
    ("class Nett: pass", r"net\.py has no class 'Net'; did you mean 'Nett'"),
    ("Net = 3", r"net\.py has no class 'Net'$"),
    ("x = 1\nimport no_such_module", r"net\.py:2: ModuleNotFoundError: No module named 'no_such_module'"),
    ("x = 1\ndef f():\n    return 1 / 0\nf()", r"net\.py:3: ZeroDivisionError"),
    ("import broken", r"broken\.py:2: NameError: name 'y'"),
    ("raise SystemExit(4)", r"net\.py:1: SystemExit: 4"),
])
def test_an_import_that_fails_names_the_line_in_the_users_file(text: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, net=text, broken="x = 1\ny\n")
    source = read_source(tmp_path / "net.py")
    allow(source)
    with pytest.raises(UsageError, match=said):
        import_class("net.py:Net", source.sha256)


@pytest.mark.parametrize(("content", "said"), [
    (b"x = (\n", r"net\.py:1: SyntaxError"), (b"\xff\xfe", "is not UTF-8 text"),
    (b"\0", "is no Python source|null bytes"),
    (b"from ..above import x", r"net\.py:1: imports `\.\.above`, which lies above"),
    (b"#" * ((1 << 20) + 1), "larger than 1 MiB"), (b"import fast", r"fast\.cpython-311\.so: is compiled"),
    (b"import deep", r"a record cannot store this name or depth"),
])
def test_source_that_a_record_cannot_hold_is_refused_in_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_bytes(content)
    (tmp_path / "fast.cpython-311.so").write_bytes(b"")
    (tmp_path / "deep/1/2/3/4/5/6/7").mkdir(parents=True)
    (tmp_path / "deep/__init__.py").write_text("")
    (tmp_path / "deep/1/2/3/4/5/6/7/far.py").write_text("")
    with pytest.raises(UsageError, match=said) as caught:
        read_source(tmp_path / "net.py")
    assert "\n" not in str(caught.value)


def test_names_of_classes_of_files() -> None:
    assert all(map(is_file_kind, ("net.py:Net", "my-net.v2.py:Net_2")))
    assert not any(map(is_file_kind, ("net.py", "a/net.py:Net", "../net.py:Net", "net.py:2", "net:Net", "net.py:Net ",
                                      "net.py:a.b", "net\n.py:Net")))


def store(source: SourceCode, code: Path) -> Path:
    for name, content in source.files.items():
        (code / source.place / name).parent.mkdir(parents=True, exist_ok=True)
        (code / source.place / name).write_bytes(content)
    return code / source.place


def test_a_stored_source_is_read_back_only_if_it_is_the_one_that_the_hash_names(tmp_path: Path) -> None:
    source = project(tmp_path / "mine", "a")
    place = store(source, tmp_path / "code")
    assert stored_source(tmp_path / "code", source.sha256, "net.py").files == source.files
    with pytest.raises(OutputError, match=r"does not hold other\.py"):
        stored_source(tmp_path / "code", source.sha256, "other.py")
    for spoil in ("change", "add", "remove", "rename", "link"):
        place = store(source, tmp_path / spoil)
        _spoil(place, spoil, tmp_path)
        with pytest.raises(OutputError, match=r"is not the source of the record|symbolic link"):
            stored_source(tmp_path / spoil, source.sha256, "net.py")
    with pytest.raises(OutputError, match=r"does not hold net\.py"):
        stored_source(tmp_path / "nowhere", source.sha256, "net.py")


def _spoil(place: Path, how: str, aside: Path) -> None:
    helper = place / "helper.py"
    if how == "change":
        helper.write_text("NAME = 'b'\n")
    elif how == "add":
        (place / "parts/torch.py").write_text("")
    elif how == "remove":
        helper.unlink()
    elif how == "rename":
        helper.rename(place / "helpers.py")
    else:
        helper.rename(aside / "same.py")
        helper.symlink_to(aside / "same.py")
