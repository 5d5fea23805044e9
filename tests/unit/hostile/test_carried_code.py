"""Code that a record brings runs only after consent, and only if it is what the record's hash names."""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from repro.core import source_code
from repro.record.folder.index import file_sha256, members, text_of
from repro.suite.kinds.program import ProgramConfig
from repro.suite.planning.consent import code_sha256
from tests.file_classes import imports, write_suite
from tests.hostile_records import invoke_words
from tests.plans import plan_file

READERS = (("verify", "RUN"), ("compare", "RUN"), ("audit", "RUN"), ("diff", "RUN", "RUN"), ("report", "RUN"),
           ("report", "RUN", "--to", "csv,markdown,jsonl"), ("plan", "digits.yaml", "--pilot", "RUN"),
           ("bundle", "RUN", "-o", "made.zip"), ("list",), ("plan", "RUN/suite.yaml"), ("show", "RUN/suite.yaml"),
           ("run", "--resume", "RUN", "--no-mlflow"), ("reproduce", "RUN"), ("reproduce", "RUN", "--force"),
           ("reproduce", "RUN", "--allow-code", "0" * 64))


def run(*words: str) -> tuple[int, str]:
    """Run a command as if this process were new: nothing is allowed or imported in it."""
    source_code._allowed.clear()
    for name in [name for name in sys.modules if name.startswith(source_code.PREFIX)]:
        del sys.modules[name]
    code, error, output = invoke_words(*words)
    return code, error or output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the record `run` of a suite with a class from a file; the file itself is gone."""
    root = tmp_path_factory.mktemp("carried")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        code, text = run("run", str(write_suite(root).name), "--no-mlflow", "--out", "run")
        assert code == 0, text
    shutil.rmtree(root / "own")
    (root / "imports.txt").unlink()
    return root


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; imports are counted where the file was first written."""
    shutil.copytree(made / "run", tmp_path / "run")
    (tmp_path / "digits.yaml").write_text(re.sub("engine: own.*", "engine: fake", (made / "paced.yaml").read_text()
                                                 .partition("baseline")[0]))
    (made / "imports.txt").unlink(missing_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_no_reader_imports_it_and_no_runner_without_consent(words: tuple[str, ...], made: Path, place: Path) -> None:
    code, text = run(*(word.replace("RUN", "run") for word in words))
    assert imports(made) == 0, text
    assert not source_code._allowed
    assert str(made) not in text
    if words[0] in ("run", "reproduce"):
        assert code == 2 and "code that the record brings: engine paced.py:Paced (code/" in text, text
    elif words[0] in ("plan", "show"):
        assert ("this suite is in a record" in text) == ("RUN/suite.yaml" in words), text
    else:
        assert code in (0, 3), text


def consent(text: str) -> str:
    found = re.search(r"--allow-code ([0-9a-f]{64})$", text.strip())
    assert found, text
    return found[1]


def test_with_consent_the_stored_source_runs_and_is_kept_again(made: Path, place: Path) -> None:
    assert run("bundle", "run", "-o", "run.zip")[0] == 0
    shutil.rmtree("run")
    refused, text = run("reproduce", "run.zip", "--out", "again")
    assert refused == 2 and not Path("again").exists()
    code, text = run("reproduce", "run.zip", "--out", "again", "--allow-code", consent(text)[:12], "--json",
                     "--even-if-undecided")
    assert code in (0, 3) and '"answer"' in text, text
    assert sorted(path.name for path in Path("again/code").rglob("*.py")) == ["pace.py", "paced.py"]
    assert run("verify", "again")[0] == 0 and run("verify", "run.zip")[0] == 0
    assert str(made) not in Path("again/plan.json").read_text() + Path("again/environment.json").read_text()


def test_the_suite_on_its_page_is_planned_next_to_a_copy_of_its_code(made: Path, place: Path) -> None:
    page = (made / "run/report/report.html").read_text()
    text = html.unescape(re.sub("<[^>]*>", "", page[page.index("How to reproduce"):page.index("How to cite")]))
    assert run("bundle", "run", "-o", "run.zip")[0] == 0
    with zipfile.ZipFile("run.zip") as bundle:
        bundle.extractall("new", [name for name in bundle.namelist() if fnmatch(name, "code/*")])
    file = re.search(r"unzip BUNDLE 'code/\*'\)\. The new run executes (code/\S+) and what it imports",
                     " ".join(text.split()))
    assert file and Path("new", file[1]) == main_file(Path("new"))
    Path("new/paced.yaml").write_text(text.partition("The suite as it ran")[2])
    assert plan_file("new/paced.yaml").digest == json.loads(Path("run/plan.json").read_text())["digest"]


def test_a_run_is_resumed_with_the_source_that_it_keeps(made: Path, place: Path) -> None:
    trial = next(Path("run/trials").iterdir())
    (trial / "result.json").unlink()
    code, text = run("run", "--resume", "run", "--no-mlflow", "--force")
    code, text = run("run", "--resume", "run", "--no-mlflow", "--force", "--allow-code", consent(text))
    assert code == 0 and (trial / "result.json").exists(), text


def reindex(root: Path) -> None:
    sums = {item.name: file_sha256(item.path) for item in members(root)}
    (root / "sha256sums.txt").write_text(text_of(sums))


def main_file(root: Path) -> Path:
    return next((root / "code").glob("*/paced.py"))


def change(root: Path) -> None:
    main_file(root).write_text(main_file(root).read_text() + "# something else\n")


def add(root: Path) -> None:
    (main_file(root).parent / "torch.py").write_text("raise SystemExit\n")


def swap_folder(root: Path) -> None:
    main_file(root).parent.rename(root / "code/0123456789abcdef")


def remove(root: Path) -> None:
    shutil.rmtree(root / "code")


def link(root: Path) -> None:
    aside = root.parent / "aside.py"
    main_file(root).rename(aside)
    main_file_place = next((root / "code").iterdir()) / "paced.py"
    main_file_place.symlink_to(aside)


@pytest.mark.parametrize("attack", [change, add, swap_folder, remove, link])
def test_source_that_is_not_the_one_named_is_reported_and_never_run(attack: object, made: Path, place: Path) -> None:
    root = place / "run"
    allowed = consent(run("reproduce", "run")[1])
    attack(root)  # type: ignore[operator]
    if attack is not link:
        reindex(root)
    code, text = run("verify", "run")
    assert code in (2, 3) and "code/" in text, text
    for words in (("reproduce", "run", "--force", "--out", "again"),
                  ("run", "--resume", "run", "--force", "--no-mlflow")):
        code, text = run(*words, "--allow-code", allowed)
        assert code in (2, 3) and "\n" not in text.strip(), text
        assert re.search("is not the source of the record|does not hold|symbolic link", text), text
    assert imports(made) == 0


@pytest.mark.parametrize("kind", ["../../up.py:Up", "/etc/up.py:Up", "a/b.py:Up", "up.py:Up\n", "paced.py:Other"])
def test_no_name_in_a_plan_leads_to_another_file(kind: str, made: Path, place: Path) -> None:
    (place / "up.py").write_text(f"open({str(place / 'ran')!r}, 'w')\nclass Up: pass\n")
    allowed = consent(run("reproduce", "run")[1])
    text = Path("run/plan.json").read_text().replace('"paced.py:Paced"', json.dumps(kind))
    Path("run/plan.json").write_text(text)
    reindex(place / "run")
    for words in (("verify", "run"), ("reproduce", "run", "--force", "--allow-code", allowed, "--out", "again"),
                  ("run", "--resume", "run", "--force", "--no-mlflow", "--allow-code", allowed)):
        code, text = run(*words)
        assert code in (2, 3), text
    assert not (place / "ran").exists() and imports(made) == 0


PROGRAM: dict[str, Any] = {
    "engine": {"kind": "program", "run": ["python", "train.py", "--seed", "{seed}"], "sha256": "a" * 64},
    "evaluation": {"metric": "loss", "direction": "lower", "reader": "tensorboard", "tag": "loss",
                   "logs": "{run_dir}/tb"},
    "stop": {"target": 0.5}}


@pytest.mark.parametrize(("part", "change"), [
    ("evaluation", {"logs": "/etc/passwd"}), ("evaluation", {"logs": "../.."}), ("engine", {"terminal": True}),
    ("engine", {"files": ["*"]}), ("engine", {"run": ["python", "train.py", "--seed", "{{seed}}"]}),
    ("engine", {"passes": ["AWS_PROFILE"]}), ("engine", {"environment": {"LD_PRELOAD": "./x.so"}}),
    ("engine", {"environment": {"A": "{run_dir}"}}), ("engine", {"environment": {"A": "{{run_dir}}"}}),
], ids=str)
def test_consent_to_a_program_covers_everything_that_acts(part: str, change: dict[str, Any]) -> None:
    one = ProgramConfig.model_validate(PROGRAM)
    other = ProgramConfig.model_validate(PROGRAM | {part: PROGRAM[part] | change})
    assert code_sha256(one.carried_code()) != code_sha256(other.carried_code())
    value = next(iter(change.values()))
    shown = str(value[-1] if isinstance(value, list) else next(iter(value)) if isinstance(value, dict) else value)
    assert shown in other.carried_code()[0].text() or "terminal" in other.carried_code()[0].text()
