"""`repro list`, `show`, `plan`, `schema`: what can be run, without running it."""

from __future__ import annotations

from pathlib import Path

import click

from repro.cli.options import (
    echo_json,
    expand,
    json_option,
    master_seed_option,
    override_option,
    read_source,
    seeds_option,
    suite_argument,
)
from repro.cli.place import PlaceParam


@click.command("list")
@click.argument("kind", default="suites", type=click.Choice(
    ["suites", "workloads", "engines", "comm", "precisions", "optimizers", "launchers", "reporters"]))
@json_option
def list_(kind: str, as_json: bool) -> None:
    """List the suites or the plug-ins of one KIND.

    \b
    Example: repro list engines
    """
    from repro.suite.listing import rows

    found = rows(kind)
    if as_json:
        echo_json(found)
        return
    width = max(len(row["name"]) for row in found)
    for row in found:
        expected = f"  [{row['expected']}]" if row.get("expected") else ""
        version = f"{row['version']}  " if row.get("version") else ""
        click.echo(f"{row['name']:<{width}}  {version}{row['title']}{expected}")


@click.command()
@suite_argument
@override_option
@json_option
def show(suite: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what SUITE compares and why.

    \b
    Example: repro show quickstart
    """
    from repro.cli.text.suite import suite_text

    found = read_source(suite, overrides).suite
    if as_json:
        echo_json(found.model_dump(mode="json", by_alias=True))
    else:
        click.echo(suite_text(found))


@click.command()
@suite_argument
@override_option
@seeds_option
@master_seed_option
@click.option("--pilot", type=PlaceParam(path_type=Path), metavar="RUN", help="Run with the same cells: also print the "
              "smallest effect that these repeats can show, and the repeats that the margin requires.")
@json_option
def plan(
    suite: str, overrides: tuple[str, ...], seeds: int | None, master_seed: int | None, pilot: Path | None,
    as_json: bool,
) -> None:
    """Show the trials that SUITE runs here.

    Also shows the skipped combinations with the reason, and an estimate of the cost. Trains nothing.

    \b
    Example: repro plan quickstart -o processes=1,2,4
    """
    from repro.cli.text.suite import plan_text
    from repro.compare.power import power
    from repro.compare.reach import out_of_reach
    from repro.record import limits
    from repro.record.store import read_record
    from repro.suite.cost import estimate, over_time_limits

    found = expand(read_source(suite, overrides, seeds, master_seed), overrides)
    shown = power(found, read_record(pilot)) if pilot is not None else None
    warnings = [f"this plan cannot be run: {why}"] if (why := limits.too_large(found)) else limits.warnings(found)
    warnings += over_time_limits(found)
    for text in warnings:
        click.echo(f"warning: {text}", err=True)
    cost = estimate(found)
    if as_json:
        data = found.model_dump(mode="json", by_alias=True) | {"cost": cost.model_dump(mode="json")}
        data["out_of_reach"] = out_of_reach(found)
        echo_json(data | ({"power": shown.model_dump(mode="json")} if shown is not None else {}))
        return
    click.echo(plan_text(found, cost, out_of_reach(found)))
    if shown is not None:
        click.echo(f"\n{shown.text()}")


@click.command()
def schema() -> None:
    """Print the JSON Schema of a suite file, for editors.

    \b
    Example: repro schema > suite.schema.json
    """
    from repro.suite.schema import suite_schema

    echo_json(suite_schema())
