"""Pages of the documentation site that are made when it is built: the front page and the reference.

Used by mkdocs (`hooks` in mkdocs.yml). The front page is the README; the reference follows from the commands, from the
schema of suite files and from the docstrings of the classes that plug-ins fill in.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PLUGINS = ("repro.seams.workload", "repro.seams.training", "repro.seams.measurement", "repro.seams.comm",
           "repro.comm.algorithm", "repro.seams.preconditioner", "repro.seams.launching", "repro.reporting",
           "repro.seams.plugin", "repro.seams.workload", "repro.core.random_streams")
"""Modules whose classes a plug-in fills in or is given."""
PUBLIC = ("repro.api.opened.open", "repro.cli.workflows.starting.plan", "repro.cli.workflows.starting.run",
          "repro.cli.workflows.starting.gate", "repro.api.opened.Run", "repro.api.comparison.Comparison",
          "repro.cli.workflows.starting.Planned")
"""What `import repro` gives, where it is defined."""
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
PROGRAMS = ("repro.watch", "repro.callbacks.huggingface", "repro.callbacks.accelerate", "repro.callbacks.lightning")
"""Modules that a program of a user imports."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"index.md": front_page(),
             "reference/commands.md": command_page(),
             "reference/suite.md": suite_page(),
             "reference/plugins.md": docstrings("Classes of plug-ins", "[Extending](../extending.md)", PLUGINS),
             "reference/programs.md": docstrings("Calls in your program", "[Your own loop](../watch.md)", PROGRAMS),
             "reference/python.md": docstrings("Python interface", "[In Python](../python.md)", PUBLIC),
             **{f"notebooks/{path.stem}.md": notebook_page(path) for path in NOTEBOOKS}}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links to files of the checkout, which the site does not have, by their text."""
    return re.sub(r"\[([^\]]+)\]\((?:\.\./(?!\w+\.md)[^)]*|examples/[^)]*|[A-Z]+\.(?:cff|md))\)", r"\1", markdown)


def front_page() -> str:
    """Return the README with links that work from the folder of the documentation."""
    return (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")


def notebook_page(path: Path) -> str:
    """Return a notebook with the outputs that are stored in it."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += map(_output, cell.get("outputs", ()))
    parts.append(f"Run it: `examples/notebooks/{path.name}`.")
    return "\n\n".join(parts) + "\n"


def _output(found: Mapping[str, Any]) -> str:
    data = found.get("data", {"text/plain": found.get("text", "")})
    kind = next(name for name in ("text/html", "image/png", "text/plain") if name in data)
    text = "".join(data[kind])
    if kind == "text/html":
        return f"<div>{' '.join(text.split())}</div>"
    picture = f'<img alt="" src="data:image/png;base64,{text.strip()}">'
    return picture if kind == "image/png" else f"```text\n{text}\n```"


def command_page() -> str:
    """Return every command with its usage, help text and options, as `--help` prints them."""
    from repro.cli.main import CONTEXT, cli

    root = click.Context(cli, info_name="repro", **CONTEXT)
    intro = "Every command with its options, generated from the program."
    return "\n\n".join(["# Commands", intro, *_command(root, 2)]) + "\n"


def _command(context: click.Context, depth: int) -> Iterator[str]:
    command = context.command
    if command.hidden:
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"{'#' * depth} {context.command_path}"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        kept = paragraph.removeprefix("\b\n")
        yield _plain(paragraph) if kept == paragraph else f"```text\n{kept}\n```"
    yield f"```text\n{context.command_path} {usage}\n```"
    records = filter(None, (item.get_help_record(context) for item in command.get_params(context)))
    rows = (f"| `{name}` | {_plain(text)} |" for name, text in records if text)  # arguments have none
    yield "\n".join(["| option | meaning |", "|---|---|", *rows])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if found := command.get_command(context, name):
                yield from _command(click.Context(found, parent=context, info_name=name), depth + 1)


def _plain(text: str) -> str:
    """Return text of a help page, in which only backticks mean anything, as Markdown on one line."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", "\\|"))
    return "".join(part if part.startswith("`") else re.sub(r"([*_\[\]])", r"\\\1", part.replace("<", "&lt;"))
                   for part in parts)


def suite_page() -> str:
    """Return the fields of a suite file as tables."""
    from repro.suite.schema import suite_schema

    whole = suite_schema()
    intro = "Every field, generated from the schema that `repro schema` prints. [Suites](../suites.md) explains them."
    parts = ["# Suite file", intro, "## Top level", *_table(whole, whole["$defs"])]
    for name, definition in sorted(whole["$defs"].items()):
        if definition.get("properties"):
            parts += [f"## {name}", definition.get("description", ""), *_table(definition, whole["$defs"])]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(definition: Mapping[str, Any], named: Mapping[str, Any]) -> Iterator[str]:
    required = definition.get("required", ())
    rows = ["| field | value | default | meaning |", "|---|---|---|---|"]
    for name, field in definition.get("properties", {}).items():
        default = "required" if name in required else f"`{json.dumps(field['default'])}`" if "default" in field else ""
        cells = (f"`{name}`", _kind(field, named), default, field.get("description", ""))
        rows.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    yield "\n".join(rows)


def _kind(field: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    """Return the values that a field takes, in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        if name.endswith("-choice"):
            return f"name of {name.removesuffix('-choice')}, or a mapping with `kind`"
        return f"[{name}](#{name.lower()})" if "properties" in named[name] else _kind(named[name], named)
    if "const" in field or "enum" in field:
        return ", ".join(f"`{json.dumps(item)}`" for item in field.get("enum", [field.get("const")]))
    if choices := field.get("anyOf") or field.get("oneOf") or [field[key] for key in ("then", "else") if key in field]:
        return " or ".join(dict.fromkeys(_kind(item, named) for item in choices))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}), named) or 'values'}"
    return str(field.get("type", ""))


def docstrings(title: str, explained: str, modules: Iterable[str]) -> str:
    """Return a page of the docstrings of some modules; `explained` links to the page that shows how they are used."""
    intro = f"Generated from the docstrings. {explained} shows how they are used."
    return "\n\n".join([f"# {title}", intro, *(f"::: {name}" for name in modules)]) + "\n"
