"""`repro data`: prepare, list and check the data sets that workloads read from disk. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from repro.cli.options import PlaceParam, echo_json, json_option
from repro.cli.terminal import say

if TYPE_CHECKING:
    from repro.workloads.data.manifest import Progress


@click.group()
def data() -> None:
    """Prepare, list and check the data sets that workloads read from disk.

    A manifest of sizes and hashes identifies the data of a run. Nothing is downloaded.
    """


@data.command()
@click.argument("name")
@click.option("--from", "folder", required=True, type=PlaceParam(path_type=Path), metavar="FOLDER",
              help="Folder (or archive) with the files of the data set; it is only read.")
def prepare(name: str, folder: Path) -> None:
    """Check the files of data set NAME and write its manifest.

    Converts or tokenises if the form requires it. After Ctrl-C the same command continues.

    \b
    Example: repro data prepare cifar10 --from ~/cifar-10-batches-bin
    """
    from repro.workloads.data.prepare import form_of
    from repro.workloads.data.prepare import prepare as make

    with _progress() as progress:
        found = make(form_of(name), folder, progress)
    facts = ", ".join(f"{key} {value}" for key, value in found.manifest.facts.items())
    say(f"{name} is prepared: {found.manifest.files:,} files, {found.manifest.bytes / 1e6:,.1f} MB, {facts}\n"
        f"version {found.manifest.version}, identity {found.sha256[:16]}, manifest in {found.home}")


@data.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the data sets that workloads read: what is prepared, where manifests are looked for, targets.

    \b
    Example: repro data list
    """
    from repro.workloads.data import manifest
    from repro.workloads.data.manifest import manifest_file
    from repro.workloads.data.prepare import forms

    rows = []
    for form in forms().values():
        found = manifest.find(form.name)
        rows.append({
            "name": form.name, "title": form.title, "prepared": found is not None,
            "looked_for": str(manifest_file(form.name)), "folder": str(found.folder) if found else None,
            "bytes": found.manifest.bytes if found else None, "sha256": found.sha256 if found else None,
            "version": found.manifest.version if found else None, "target": form.target, "wanted": form.wanted,
            "twin": form.twin,
        })
    if as_json:
        echo_json(rows)
        return
    for row in rows:
        state = (f"prepared: {row['folder']}, {row['bytes'] / 1e6:,.1f} MB, version {row['version']}"  # type: ignore[operator]
                 if row["prepared"] else f"not prepared: no {row['looked_for']}")
        say(f"{row['name']}: {row['title']}\n  {state}\n  target: {row['target']}\n  files:  {row['wanted']}\n"
            f"  without files: -o workload={row['twin']}")


@data.command()
@click.argument("name")
def check(name: str) -> None:
    """Hash every file of data set NAME and compare it with the manifest.

    \b
    Example: repro data check imagenet
    """
    from repro.workloads.data.prepare import check_all, form_of, required

    found = required(form_of(name))
    with _progress() as progress:
        check_all(found, progress)
    say(f"{name}: all {found.manifest.files:,} files match the manifest, identity {found.sha256[:16]}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show how far a preparation is, as a bar on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from repro.cli.terminal import Console

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal
                  ) as shown:
        tasks = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done, total=total)

        yield progress
