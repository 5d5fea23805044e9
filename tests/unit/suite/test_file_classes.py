"""Classes from files in a suite: pinned by hash, part of a cell's identity, every mistake in one line."""

from __future__ import annotations

import hashlib
import json
import shlex
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from repro.cli.text.suite import suite_text
from repro.core.errors import ReproError, SuiteError
from repro.core.machine import Machine
from repro.suite.file import read_suite
from repro.suite.planning.consent import carried_by, code_sha256, refuse_credentials, require_code
from repro.suite.planning.plan import Plan, expand_again
from repro.suite.schema import suite_schema
from tests.file_classes import LOUD, SUITE, imports, write_suite
from tests.plans import plan_file

MACHINE = Machine("cpu", 0, 2)


def test_a_plan_holds_the_short_name_and_the_hash_and_no_path(tmp_path: Path) -> None:
    plan = plan_file(write_suite(tmp_path))
    assert [cell.label for cell in plan.cells] == ["step seconds 0.01", "step seconds 0.014"]
    engine = plan.cells[1].choices.engine
    assert (engine.kind, engine.label) == ("paced.py:Paced", "paced.py:Paced (step_seconds=0.014)")
    text = plan.model_dump_json(by_alias=True)
    assert str(tmp_path) not in text and "own/" not in text
    assert json.loads(text)["suite"]["trial"]["engine"] == {"kind": "paced.py:Paced", "code": engine.code}


def test_other_code_is_another_cell_and_another_experiment(tmp_path: Path) -> None:
    plans = [plan_file(write_suite(tmp_path / name, seconds)) for name, seconds in (("a", 1), ("b", 1), ("c", 2))]
    plans[1:1] = [plan_file(write_suite(tmp_path / "a", 1))]
    ids = [[cell.cell_id for cell in plan.cells] for plan in plans]
    assert ids[0] == ids[1] and plans[0].digest == plans[1].digest
    assert not set(ids[0]) & set(ids[3]) and plans[0].digest != plans[3].digest, "only the module beside it differs"


def test_a_suite_is_read_without_importing_and_a_record_too(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    source = read_suite(str(suite))
    assert list(source.sources) == ["paced.py"] and imports(tmp_path) == 0
    text = plan_file(suite).model_dump_json(by_alias=True)
    assert imports(tmp_path) == 1
    stranger = text.replace(source.sources["paced.py"].sha256, "0" * 64)  # nobody allowed this source
    read = Plan.model_validate_json(stranger)
    assert read.absent_plugins() == ["engine 'paced.py:Paced' is a class from a file, whose source the record holds "
                                     "(sha256 0000000000000000); reading a record runs none of it"]
    assert [cell.label for cell in expand_again(read, MACHINE).cells] == [cell.label for cell in read.cells]
    options = [[cell.choices.engine.options for cell in found.cells] for found in (expand_again(read, MACHINE), read)]
    assert options[0] == options[1] and len(options[0][0]) > 1, "with the defaults, which only the record knows"
    assert imports(tmp_path) == 1


@pytest.mark.parametrize(("engine", "said"), [
    ("own/no.py:Paced", r"paced\.yaml:5: trial\.engine: .*own/no\.py: there is no such file"),
    ("own:Paced", r"no engine named 'own:Paced'"),
    ("own/paced.py", r"paced\.yaml:5: trial\.engine: a class from a file is written path/to/file\.py:Class"),
    ("own/paced.py:Pace", r"paced\.yaml:5: trial\.engine: .*own/paced\.py has no class 'Pace'; did you mean 'Paced'"),
    ("own/wrong.py:Wrong", r"wrong\.py:Wrong is not of seam engine: it does not derive from Engine; it is one of seam "
                           "workload"),
    ("own/wrong.py:Plain", r"wrong\.py:Plain is not of seam engine: it does not derive from Engine$"),
    ("own/wrong.py:Half", r"wrong\.py:Half lacks what an? engine needs: .*start"),
    ("own/wrong.py:Code", r"wrong\.py:Code has an option 'code', which names a part of any choice; rename it"),
    ("own/wrong.py:Alias", r"wrong\.py:Alias: option 'pace' has an alias"),
    ("own/broken.py:X", r"paced\.yaml:5: trial\.engine: .*own/broken\.py:2: NameError"),
    ("/etc/paced.py:Paced", r"paced\.yaml:5: trial\.engine: write the path relative to the suite's file"),
    ("own/my file.py:Paced", r"are no names of a file and a class that a record can have"),
    ("{kind: 'own/paced.py:Paced', code: abc}", r"trial\.engine\.code: is the sha256 of a source, which only a record"),
    ("{kind: 'own/paced.py:Paced', pace: 3}", r"trial\.engine\.pace: unknown key"),
])
def test_every_mistake_is_one_line_with_file_line_and_field(engine: str, said: str, tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    (tmp_path / "own/wrong.py").write_text(
        "from pydantic import Field\nfrom repro.engines.fake import Fake\nfrom repro.seams.training import Engine\n"
        "from repro.workloads.digits import Digits\nclass Wrong(Digits): pass\nclass Plain: pass\n"
        "class Half(Engine): pass\nclass Code(Fake):\n    code: int = 1\n"
        "class Alias(Fake):\n    pace: int = Field(1, alias='p')\n")
    (tmp_path / "own/broken.py").write_text("x = 1\ny\nclass X: pass\n")
    suite.write_text(SUITE.split("matrix:")[0].replace("own/paced.py:Paced", engine))
    with pytest.raises(ReproError, match=said) as caught:
        plan_file(suite)
    assert "\n" not in str(caught.value)


def test_two_files_of_one_name_are_refused_and_two_of_one_content_are_one(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    for name in ("same", "other"):
        write_suite(tmp_path / name, 0.01 if name == "same" else 0.02)
    text = SUITE.split("baseline")[0].replace("engine.step_seconds: [0.01, 0.014]",
                                              "engine: [own/paced.py:Paced, OTHER/own/paced.py:Paced]")
    (tmp_path / "same/own/paced.py").write_text(LOUD.format(log=str(tmp_path / "imports.txt")))
    suite.write_text(text.replace("OTHER", "same"))
    with pytest.raises(SuiteError, match="requested twice"):
        plan_file(suite)
    suite.write_text(text.replace("OTHER", "other"))
    with pytest.raises(SuiteError, match=r"matrix\.engine\[1\]: .*are two different files of one name; rename one"):
        plan_file(suite)


def test_an_override_is_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = write_suite(tmp_path)
    write_suite(tmp_path / "here", 0.5)
    monkeypatch.chdir(tmp_path / "here")
    codes = {plan_file(suite, *item).cells[0].choices.engine.code for item in (
        ("engine=own/paced.py:Paced",), (f"engine={tmp_path}/here/own/paced.py:Paced",), ("engine.step_seconds=0.5",))}
    assert len(codes) == 2, "the last keeps the suite's own"
    assert plan_file(suite, "engine.kind=fake").cells[0].choices.engine.code == ""
    with pytest.raises(SuiteError, match=r"-o engine\.kind=own/paced\.py:Paced: give a class from a file as engine="):
        plan_file(suite, "engine.kind=own/paced.py:Paced")


def test_a_suite_in_a_record_imports_nothing(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    read_suite(str(suite))  # as `repro plan --json` may have written it
    (tmp_path / "sha256sums.txt").write_text("")
    with pytest.raises(SuiteError, match="this suite is in a record"):
        read_suite(str(suite))
    assert imports(tmp_path) == 0


def test_source_with_a_credential_is_refused(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    with (tmp_path / "own/pace.py").open("a") as file:
        file.write("# @see https://example.org/ and a@b\nTOKEN = 'hunter2-hunter2'\n")
    plan = plan_file(suite)
    refuse_credentials(plan, {})
    with pytest.raises(ReproError, match=r"pace\.py:3: holds the value of your variable MY_TOKEN"):
        refuse_credentials(plan, {"MY_TOKEN": "hunter2-hunter2"})
    with (tmp_path / "own/pace.py").open("a") as file:
        file.write("URL = 'https://me:secret@example.org'\n")
    with pytest.raises(ReproError, match=r"pace\.py:4: holds a password in an address"):
        refuse_credentials(plan_file(suite), {})


def test_consent_is_to_all_of_it_by_its_hash(tmp_path: Path) -> None:
    cells = plan_file(write_suite(tmp_path)).cells
    found = carried_by(cells)
    whole = code_sha256(found)
    assert [item.what for item in found] == ["engine paced.py:Paced"]
    for given in (whole, whole[:12], whole[:12].upper()):
        require_code("theirs.zip", cells, given)
    for given, said in ((None, rf"theirs\.zip: this would run code that the record brings: engine paced\.py:Paced "
                               rf"\(code/{found[0].sha256[:16]}/paced\.py\); read it there, .*"
                               rf"add --allow-code {whole}$"),
                        (whole[:11], "must be the hash"), ("0" * 12, "is the hash of other code"), ("", "must be")):
        with pytest.raises(ReproError, match=said):
            require_code("theirs.zip", cells, given)
    with pytest.raises(ReproError, match="contains no code; leave the option out"):
        require_code("theirs.zip", (), whole)
    bundle = tmp_path / "my bundle.zip"
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr(found[0].place, "SECONDS = 1\n")
    with pytest.raises(ReproError, match="read it with `unzip -p ") as told:
        require_code(str(bundle), cells, None)
    _, option, archived, pattern, *_ = shlex.split(str(told.value).partition("`")[2].partition("`")[0])
    assert (option, archived) == ("-p", str(bundle)) and fnmatch(found[0].place, pattern)


def test_show_prints_of_every_file_the_sha256_of_its_content(tmp_path: Path) -> None:
    source = read_suite(str(write_suite(tmp_path)))
    shown = [line for line in suite_text(source.suite, source.sources).splitlines() if line.startswith("executes:")]
    assert shown == [f"executes:    {path}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}, when it is "
                     "planned or run" for path in (tmp_path / "own/paced.py", tmp_path / "own/pace.py")]


def test_editors_accept_a_class_from_a_file(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(suite_schema())
    for engine, fits in (("own/paced.py:Paced", True), ({"kind": "own/paced.py:Paced", "pace": 3}, True),
                         ("own/paced.py", False), ({"kind": "own:Paced"}, False)):
        data = yaml.safe_load(SUITE)
        data["trial"]["engine"] = engine
        assert check.is_valid(data) is fits, engine
