"""YAML into plain data, with the line of every field; what no suite needs is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core.errors import SuiteError
from repro.core.yaml_file import MAX_BYTES, MAX_DEPTH, MAX_NODES, YamlFile, dotted, read_yaml

CALM = settings(max_examples=50, deadline=None, derandomize=True, database=None)

TEXT = """\
# a comment
suite: sample
trial:
  engine: ddp
  batch:
    global: 64
matrix:
  engine:
    - ddp
    - {kind: deepspeed,
       stage: 1}
"""


@pytest.mark.parametrize(("path", "line"), [
    (("suite",), 2), (("trial",), 3), (("trial", "engine"), 4), (("trial", "batch", "global"), 6),
    (("matrix", "engine", 0), 9), (("matrix", "engine", 1), 10), (("matrix", "engine", 1, "stage"), 11),
    (("trial", "batch", "accumulation"), 5), (("trial", "stop", "target"), 3), (("baseline",), 2),
])
def test_every_field_has_its_line_and_a_missing_one_its_parents(path: tuple[str | int, ...], line: int) -> None:
    assert YamlFile("s.yaml", TEXT).line(path) == line


def test_data_are_plain() -> None:
    assert YamlFile("s.yaml", TEXT).data == {
        "suite": "sample", "trial": {"engine": "ddp", "batch": {"global": 64}},
        "matrix": {"engine": ["ddp", {"kind": "deepspeed", "stage": 1}]},
    }
    assert YamlFile("s.yaml", "").data is None


@pytest.mark.parametrize(("written", "meant"), [
    ("1e-3", 0.001), ("5E-4", 0.0005), ("-1e3", -1000.0), (".5e1", 5.0), ("1.0e-3", 0.001), ("5.0e-4", 0.0005),
    ("'1e-3'", "1e-3"), ("e5", "e5"), ("1e", "1e"), ("12", 12), ("true", True), ("null", None), ("~", None),
    ("2024-01-02", "2024-01-02"), ("hello", "hello"), ("!!str 5", "5"),
    ("0", 0), ("0.5", 0.5), ("-0.0", -0.0), ("0x10", 16), ("'1:30'", "1:30"),
])
def test_scalars_are_parsed_as_people_expect(written: str, meant: object) -> None:
    data = YamlFile("s.yaml", f"value: {written}").data["value"]
    assert data == meant
    assert type(data) is type(meant)


@pytest.mark.parametrize(("text", "line", "problem"), [
    ("a: 1\nb: 2\na: 3\n", 3, "'a' is given twice"),
    ("t:\n  a: 1\n  a: 1\n", 3, "'a' is given twice"),
    ("a: &x [1]\nb: *x\n", 2, "aliases (*name) are not allowed"),
    ("a: 1\nb: [\n", 3, "not valid YAML"),
    ("a: 1\n\tb: 2\n", 2, "not valid YAML"),
    ("a: 1\n? [b]\n: 2\n", 2, "a key must be a plain word"),
    ("a: 1\nb: !!python/object/apply:os.system ['true']\n", 2,
     "tags (tag:yaml.org,2002:python/object/apply:os.system)"),
    ("a: 1\nb: !!python/name:os.system x\n", 2, "could not determine a constructor"),
    ("a: 1\nb: 064\n", 2, "064: YAML reads this as base 8"),
    ("a: 1\nb: [1, -1:30.5]\n", 2, "-1:30.5: YAML reads this as base 8 (leading zero) or 60"),
    ("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), 1, f"nested deeper than {MAX_DEPTH} levels"),
])
def test_forbidden_content_of_a_suite(text: str, line: int, problem: str) -> None:
    with pytest.raises(SuiteError) as caught:
        YamlFile("s.yaml", text)
    assert str(caught.value).startswith(f"s.yaml:{line}:")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stored_file_has_the_numbers_that_ran() -> None:
    assert YamlFile("s.yaml", "a: [064, 1:30]", stored=True).data == {"a": [52, 90]}


def test_limits_of_size() -> None:
    YamlFile("s.yaml", "a: [" + "1," * (MAX_NODES - 100) + "]")
    with pytest.raises(SuiteError, match=f"more than {MAX_NODES} values"):
        YamlFile("s.yaml", "a: [" + "1," * MAX_NODES + "]")
    with pytest.raises(SuiteError, match=f"larger than {MAX_BYTES} bytes"):
        YamlFile("s.yaml", "# " + "x" * MAX_BYTES)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"none\.yaml: cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"title: \xe9t\xe9")
    with pytest.raises(SuiteError, match=r"latin\.yaml: cannot be read: not UTF-8 text"):
        read_yaml(tmp_path / "latin.yaml")
    (tmp_path / "nul.yaml").write_bytes(b"title: a\0b")
    with pytest.raises(SuiteError, match="not valid YAML"):
        read_yaml(tmp_path / "nul.yaml")


@CALM
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!?|>'\"#%@`, \n\t012e."), max_size=60))
def test_any_text_is_data_or_a_suite_error(text: str) -> None:
    try:
        YamlFile("s.yaml", text)
    except SuiteError as error:
        assert str(error).startswith("s.yaml")  # noqa: PT017  # most texts raise nothing


LEAVES = st.integers() | st.booleans() | st.text(alphabet="abcxyz ", max_size=8) | st.floats(-1e6, 1e6)


@CALM
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.lists(LEAVES, max_size=3), max_size=4))
def test_written_yaml_is_read_back(data: dict[str, list[object]]) -> None:
    assert YamlFile("s.yaml", yaml.safe_dump(data)).data == data


def test_a_path_is_written_as_people_write_it() -> None:
    assert dotted(("matrix", "engine", 1, "stage")) == "matrix.engine[1].stage"
