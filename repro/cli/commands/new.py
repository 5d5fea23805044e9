"""`repro new`: working, commented starts of a suite, a workload and a program."""

from __future__ import annotations

import json
import keyword
import re
from importlib.resources import files
from pathlib import Path

import click

from repro.cli.terminal import say
from repro.core.errors import OutputError, UsageError

PUBLIC = ("lightning", "mingpt", "nanogpt", "trainer", "word_language_model")
"""Public programs of which the templates have a suite."""
NAME = re.compile(r"[a-z][a-z0-9-]{0,49}")


@click.group()
def new() -> None:
    """Write a working, commented start of a suite, a workload or a program. Nothing is overwritten."""


@new.command()
@click.argument("name")
def suite(name: str) -> None:
    """Write NAME.yaml: two engines on handwritten digits.

    \b
    Example: repro new suite my-engines
    """
    made = {Path(f"{checked(name)}.yaml"): start("suite.yaml", NAME=name, SUITE=name)}
    write(made)
    say(f"wrote {name}.yaml; next: repro plan {name}.yaml, repro run {name}.yaml")


@new.command()
@click.argument("name")
def workload(name: str) -> None:
    """Write a workload in a separate file, and NAME.yaml, a suite that trains it.

    \b
    Example: repro new workload my-spirals
    """
    module, found = checked(name).replace("-", "_"), "".join(part.capitalize() for part in name.split("-"))
    if keyword.iskeyword(found) or keyword.iskeyword(module):
        raise UsageError(f"{name!r} is a Python keyword; give the workload another name")
    write({Path(f"{module}.py"): start("workload.py", CLASS=found),
           Path(f"{name}.yaml"): start("workload.yaml", NAME=name, SUITE=name, FILE=module, CLASS=found)})
    say(f"wrote {module}.py with class {found}, and {name}.yaml; next: repro gate {name}.yaml, repro run {name}.yaml")


@new.command()
@click.argument("name")
@click.option("--for", "known", type=click.Choice(PUBLIC), help="Write NAME.yaml for this public program, unmodified, "
              "with its start rule, its seed and its traps, instead of a script.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), show_default=True,
              help="With --for: your clone or folder of it.")
def program(name: str, known: str | None, folder: Path) -> None:
    """Write folder NAME: train.py, which does not use repro, and suite.yaml, which runs it unmodified.

    \b
    Example: repro new program my-training
             repro new program char --for nanogpt --folder ~/nanoGPT
    """
    if known is not None:
        place = json.dumps(str(folder))
        write({Path(f"{checked(name)}.yaml"): start(f"for/{known}.yaml", NAME=name, SUITE=name, FOLDER=place)})
        say(f"wrote {name}.yaml; read its traps, then: repro plan {name}.yaml, repro run {name}.yaml")
        return
    folder = Path(checked(name))
    write({folder / "train.py": start("train.py"),
           folder / "suite.yaml": start("program.yaml", NAME=name, SUITE=f"{name}/suite")})
    say(f"wrote {name}/train.py and {name}/suite.yaml; next: repro plan {name}/suite.yaml, repro run {name}/suite.yaml")


def checked(name: str) -> str:
    """Return a name that a suite, a file and a class can have.

    Raises:
        UsageError: it is none.
    """
    if NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r} is not a name: use small letters, digits and `-`, at most 50, a letter first")
    return name


def start(template: str, **words: str) -> str:
    """Return a template with its words in capitals replaced."""
    text = files("repro.templates").joinpath(f"new/{template}").read_text(encoding="utf-8").replace("\r\n", "\n")
    for word, value in words.items():
        text = re.sub(rf"\b{word}\b", value.replace("\\", r"\\"), text)
    return text


def write(made: dict[Path, str]) -> None:
    """Write all files or none.

    Raises:
        OutputError: one of them is there, or cannot be written.
    """
    if present := next((path for path in made if path.exists() or path.is_symlink()), None):
        raise OutputError(f"{present}: already exists; nothing was written")
    for path, text in made.items():
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
        except OSError as reason:
            raise OutputError(f"{path}: cannot be written: {reason.strerror}") from None
