"""README and docs: no dead link, every page in the site, the site builds, examples are tested and planned."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from repro.cli.main import cli
from repro.compare.design.calibration import place_for
from repro.engines.zero import extension
from repro.launchers.nodes.hosts import PORT, secret_file
from repro.record.questions import questions_file
from repro.runner.machine_watch import NAME
from repro.runner.tracking_store import database, store_uri
from repro.workloads.data.manifest import store as data_folder
from tests.plans import plan_file

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
LINK = re.compile(r'(?<!\\)\[[^\]]*\]\(([^)\s]+)(?: +"[^"]*")?\)|<[^>]* (?:src|srcset|href)="([^"]+)"')
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ +(.*?) *$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def dead_links(page: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead to no file or to no heading."""
    found = []
    for target in map("".join, LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text)))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = page.parent / path if path else page
        if place.exists() and (not anchor or place.suffix != ".md"):
            continue
        if not place.exists() or anchor not in anchors(place.read_text(encoding="utf-8") if path else text):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_link_is_dead(page: Path) -> None:
    assert dead_links(page, page.read_text(encoding="utf-8")) == []


def test_dead_links_are_found() -> None:
    text = "# A title\n[a](missing.md) [b](#a-title) [c](#no-title) [d](https://example.org) `[e](code.md)`\n" \
           '[f](docs/start.md#no-title) ![g](docs/no.png "h") <img alt="i" src="docs/none.png"> [j](LICENSE "k")\n'
    assert dead_links(ROOT / "README.md", text) == ["missing.md", "#no-title", "docs/start.md#no-title", "docs/no.png",
                                                   "docs/none.png"]


def test_every_page_is_in_the_contents_of_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w/-]+\.md", text[text.index("\nnav:"):]))
    made = {"index.md", *(f"reference/{name}.md" for name in ("commands", "suite", "plugins", "programs", "python")),
            *(f"notebooks/{path.stem}.md" for path in (ROOT / "examples/notebooks").glob("*.ipynb"))}
    assert listed - made == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


def test_the_examples_of_the_first_page_are_those_that_are_tested() -> None:
    readme = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    for kind, name in (("yaml", "mine.yaml"), ("python", "net.py")):
        (shown,) = re.findall(rf"^```{kind}\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
        assert shown == (ROOT / "examples" / "digits" / name).read_text(encoding="utf-8")
        assert shown.count("\n") <= 20


def test_the_script_for_slurm_is_the_one_that_is_tested() -> None:
    text = (ROOT / "docs/nodes.md").read_text(encoding="utf-8")
    assert f"```sh\n{(ROOT / 'examples/slurm/job.sh').read_text(encoding='utf-8')}```" in text


def test_what_a_command_of_the_first_page_takes_an_earlier_one_has_made() -> None:
    """Each takes what the page or an earlier one has made, and none makes what is there."""
    text, made = (ROOT / "docs/start.md").read_text(encoding="utf-8"), {"mine.yaml", "quickstart"}
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[0] != "repro":
                continue
            verb, *rest = words[1:]
            new = [rest.pop(rest.index(option) + 1) for option in ("--out", "-o") if option in rest and verb != "plan"]
            if verb == "new":
                new.append(f"{rest.pop()}.yaml")
            elif rest:
                assert rest[0] in made, line
            assert not made & set(new), line
            made |= set(new)
    assert {"runs/mine", "mine.zip"} <= made


def test_the_page_for_administrators_names_where_the_program_writes(monkeypatch: pytest.MonkeyPatch,
                                                                    tmp_path: Path) -> None:
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MLFLOW_TRACKING_URI",
                 "REPRO_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    store = database(store_uri())
    assert store is not None and "`mlflow.db`" in text
    for place in (store.parent, questions_file().parent, place_for("0" * 64).parent, extension.place().parents[1],
                  data_folder().parent, secret_file()):
        assert f"`~/{place.relative_to(tmp_path).as_posix()}`" in text, place
    assert store.parent.stat().st_mode & 0o777 == 0o700
    assert f"`@{NAME.lstrip(chr(0))}`" in text and f"port {PORT}" in text


def test_the_page_of_commands_has_a_line_for_every_command() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    wanted = {name for name, command in commands.items() if command is not None and not command.hidden}
    listed = set(re.findall(r'^(?:eval "\$\()?repro ([a-z]+)', text, re.MULTILINE))
    assert wanted - listed == set()


def test_the_page_that_reproduces_a_class_from_a_file_names_its_consent() -> None:
    assert "`--allow-code HASH`" in (ROOT / "docs/start.md").read_text(encoding="utf-8")


def test_the_paper_is_set_until_its_labels_are_settled() -> None:
    text = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    assert "`pdflatex report`, `bibtex report`, then `pdflatex report` twice" in text


def test_git_ignores_what_a_local_store_leaves(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    names = ["mlflow.db", "mlflow.db-wal", ".mlflow.db.lock"]
    found = subprocess.run(["git", "check-ignore", *names], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.stdout.split() == names


@pytest.mark.parametrize(("page", "suite", "example"), [
    ("docs/start.md", "mine", "digits"), ("docs/programs.md", "torchrun-spirals", "torchrun"),
    ("docs/programs.md", "accelerate-gate", "accelerate"),
    ("docs/extending.md", "spirals", "spirals"), ("docs/extending.md", "allreduce", "allreduce")])
def test_a_suite_of_a_page_is_planned_with_every_cell(page: str, suite: str, example: str, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples" / example, tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    shown = re.findall(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (text,) = (block for block in shown if block.startswith(f"suite: {suite}\n"))
    Path("shown.yaml").write_text(text, encoding="utf-8")
    plan = plan_file("./shown.yaml")
    assert plan.cells and not plan.skipped


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install -e '.[docs]'")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
                           cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))
    outside = {found for page in pages for found in re.findall(
        r'<(?:script|img|link|iframe)[^>]*(?:src|href)="?(https?:[^" >]+)', page.read_text(encoding="utf-8"))}
    assert not outside, "a page loads these from a network"
