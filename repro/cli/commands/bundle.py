"""`repro bundle`, `verify`, `diff`, `reproduce`: records that are sent, checked, compared and run again."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from repro.cli.options import PlaceParam, allow_code_option, allow_option, answer, echo_json, json_option
from repro.cli.terminal import say
from repro.core.errors import UsageError


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN", type=PlaceParam(path_type=Path))
@click.option("-o", "--out", type=PlaceParam(dir_okay=False, path_type=Path), help="File to write.  "
              "[default: SUITE-DIGEST.zip]")
@click.option("--license", "licence", default="not stated", metavar="TEXT", help="Licence of the bundle (an address or "
              "an SPDX name).")
@click.option("--sign", "key", type=PlaceParam(exists=True, dir_okay=False, path_type=Path), metavar="KEY",
              help="Sign the bundle with an SSH key; the signature is a file beside it, with .sig after its name.")
@json_option
def bundle(runs: tuple[Path, ...], out: Path | None, licence: str, key: Path | None, as_json: bool) -> None:
    """Pack RUN into one file for others.

    The bundle holds a hash of every file and RO-Crate metadata, but no credentials and no paths of this machine.

    \b
    Example: repro bundle runs/quickstart-20260101-120000 -o quickstart.zip
    """
    from repro.bundle.contents import make_bundle
    from repro.bundle.source import expanded
    from repro.record.folder.registration import BUNDLES, sign

    run, *others = expanded(runs)
    if others:
        named = ", ".join(map(str, (run, *others[:4])))
        raise UsageError(f"{1 + len(others)} runs match: {named}{', ...' * (len(others) > 4)}; name one, as a bundle "
                         "holds one run")
    made = make_bundle(run, out, licence)
    if key is not None:
        sign(made.path, key, BUNDLES)
    if as_json:
        echo_json(made)
        return
    if made.scrubbed:
        say(f"paths of this machine, and credentials if there were any, are left out of {len(made.scrubbed)} files: "
                   f"{', '.join(made.scrubbed[:5])}{' ...' if len(made.scrubbed) > 5 else ''}", err=True)
    if made.emulated:
        say(f"{made.emulated[0]} stands for a GPU: the bundle says so, and a board does not count it", err=True)
    say(f"{made.path}: {made.files} files, sha256 of the index {made.identity}")


@click.command()
@click.argument("source", metavar="BUNDLE|RUN", type=PlaceParam(path_type=Path))
@click.option("--signer", type=PlaceParam(exists=True, dir_okay=False, path_type=Path), metavar="KEY.pub", help="Also "
              "check that the owner of this public SSH key signed the bundle, or its plan before the first trial.")
@click.option("--registered", type=PlaceParam(exists=True, dir_okay=False, path_type=Path), metavar="FILE", help="Also "
              "check that this file, as others have kept it, registers its plan.")
@json_option
def verify(source: Path, signer: Path | None, registered: Path | None, as_json: bool) -> None:
    """Check that a record is unmodified.

    A record is sound if it is complete and unmodified.

    Checks hashes and schemas, derives every result from its log again, and checks conservation and pairing. Exit code 1
    if trials of its plan have no result, 3 if the record was modified.

    \b
    Example: repro verify quickstart.zip
    """
    from repro.bundle.verify import verify as verify_record

    found = verify_record(source, signer, registered)
    answer(as_json, found.as_json(), found.text)
    sys.exit(found.exit_code)


@click.command()
@click.argument("first", metavar="RUN", type=PlaceParam(path_type=Path))
@click.argument("second", metavar="RUN", type=PlaceParam(path_type=Path))
@json_option
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Show the differences between two records.

    Compares code, libraries, hardware, settings, hyper-parameters and data of two runs or bundles.

    \b
    Example: repro diff runs/old runs/new
    """
    from repro.bundle.difference import diff_records

    found = diff_records(first, second)
    answer(as_json, found, found.text)


@click.command()
@click.argument("source", metavar="BUNDLE|RUN", type=PlaceParam(path_type=Path))
@click.option("--trials", metavar="N|ID[,ID...]", help="N new pairs, or the trials with these ids.  [default: as many "
              "pairs as the margin needs]")
@click.option("--blocks", metavar="SEED[,SEED...]", help="Run the pairs of these seeds of the record only, which the "
              "answer then names.")
@click.option("--margin", type=click.FloatRange(0, 1, min_open=True), metavar="M", help="Change of the ratio that "
              "counts as the same, 0.1 for 10 %.  [default: the suite's]")
@click.option("--interaction", type=click.FloatRange(0, 1), default=0.0, metavar="S", help="Standard deviation by "
              "which the true ratio may differ between sessions or machines, 0.02 for 2 %; it widens both answers.")
@click.option("--even-if-undecided", "undecided", is_flag=True, help="Run although the record cannot support the "
              "answer \"reproduced\" on these terms.")
@click.option("--until-settled", is_flag=True, help="Judge at half, three quarters and all of the pairs, and end "
              "at the first of these looks with an answer; their errors together are those of one.")
@click.option("--out", type=PlaceParam(path_type=Path), help="Run folder to create.  "
              "[default: runs/SUITE-reproduce-DATE-TIME]")
@click.option("--resume", type=PlaceParam(path_type=Path), metavar="RUN", help="Resume an interrupted reproduction of "
              "this record, and judge it.")
@click.option("--force", is_flag=True, help="Reproduce even if the record was modified; with --resume also if the "
              "machine or code have changed.")
@allow_option
@allow_code_option
@json_option
def reproduce(
    source: Path, trials: str | None, blocks: str | None, margin: float | None, interaction: float, undecided: bool,
    until_settled: bool, out: Path | None, resume: Path | None, force: bool, allowed: tuple[str, ...],
    code: str | None, as_json: bool,
) -> None:
    """Run a record again and judge its claim.

    The answer is reproduced, not reproduced or inconclusive. The claim is the ratio of the declared contrast: its
    change from the record to the new run, within a margin. Cells of a suite with `determinism: bitwise` are judged bit
    for bit. Before anything runs the command says which answers are within reach. Exit code 0 if reproduced, else 3.

    \b
    Example: repro reproduce quickstart.zip --margin 0.2
             repro reproduce pool.zip --blocks 3,11,20,24,31,47
    """
    from repro.cli.workflows.reproduce import Wanted
    from repro.cli.workflows.reproduce import reproduce as reproduce_record

    if resume is not None and (
            trials or blocks or out or margin or interaction or undecided or until_settled):
        raise click.UsageError("--resume RUN keeps the folder, the trials and the terms of RUN; leave out --trials, "
                               "--blocks, --margin, --interaction, --even-if-undecided, --until-settled and --out")
    if trials and blocks:
        raise click.UsageError("--trials and --blocks: each says which pairs run; give one")
    found = reproduce_record(source, trials, out, force, resume, allowed, code,
                             Wanted(margin, interaction, undecided, until_settled, blocks))
    answer(as_json, found.as_json(), found.text)
    sys.exit(found.exit_code)
