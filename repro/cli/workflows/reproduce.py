"""Reproduction of a record: run its trials again and judge the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from repro.bundle.claim import Claimed, Terms, claims_of, is_bitwise, measured, settled_terms
from repro.bundle.judge import Reproduction, judge
from repro.bundle.source import open_record
from repro.bundle.verify import verify
from repro.cli.terminal import command, say
from repro.cli.workflows.run import execute
from repro.compare.evidence.repeated import repeated_cells
from repro.core.errors import Exit, OutputError, RecordModified, UsageError, nearest
from repro.core.files import read_bounded, write_json, write_model
from repro.core.frozen import Frozen
from repro.core.machine import Machine, detect
from repro.core.random_streams import fresh_seed
from repro.record.folder.limits import check_size
from repro.record.folder.resume import reopen
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.folder.stored_code import allow_code_of, classes_from_files
from repro.runner.run import dated, prepare
from repro.stats.interval import from_log
from repro.suite.metrics import METRICS
from repro.suite.model import MOST_SEEDS
from repro.suite.planning.consent import permissions, require_allowed, require_code
from repro.suite.planning.plan import Plan, planned_order

FILE = "reproduction.json"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The terms of a reproduction that its user declares before it runs."""

    margin: float | None = None
    """None: the suite's."""
    interaction: float = 0.0
    undecided: bool = False
    """Run although "reproduced" may be out of reach."""
    until_settled: bool = False
    """Judge at declared looks, and end at the first that answers."""


@dataclass(frozen=True, slots=True)
class Reproduced:
    """The answer, and the folder of the second execution."""

    reproduction: Reproduction
    source: str
    identity: str | None
    run: Path

    @property
    def exit_code(self) -> Exit:
        """0 only if reproduced, so that a script never mistakes "inconclusive" for it."""
        return Exit.DONE if self.reproduction.answer == "reproduced" else Exit.NOT_REPRODUCED

    def as_json(self) -> dict[str, Any]:
        return {"exit_code": int(self.exit_code), "source": self.source, "identity": self.identity,
                "run": str(self.run), **self.reproduction.as_json()}

    def text(self) -> str:
        return f"{self.reproduction.text()}\nrun:    {self.run}"


def reproduce(
    source: Path, trials: str | None, out: Path | None, force: bool = False, resume: Path | None = None,
    allowed: Sequence[str] = (), code: str | None = None, wanted: Wanted = Wanted(),
) -> Reproduced:
    """Run the trials that the claims of the record at `source` need again, and judge the results.

    Args:
        trials: a number of pairs, or comma-separated ids; None: as many pairs as the margin needs.
        force: also if `verify` finds the record modified. With `resume` also if the machine or code have changed since
            the reproduction began.
        resume: the folder of an interrupted reproduction to complete.
        allowed: values of options that may lead out of the run, `SEAM.OPTION=VALUE`.
        code: hash of the code that the record brings and may run; None: none may.
        wanted: the terms that the user declares.

    Raises:
        RecordModified: the record was modified.
        OutputError: the record cannot be read, or the run folder cannot be written.
        UsageError: no trial is chosen, the record cannot support an answer on these terms, this machine cannot run it,
            it is larger than one run can be, or `resume` is of another record.
        KeyboardInterrupt: a signal ended the run; completed trials are kept and not judged.
        ReproError: the run could not be completed.
    """
    checked = verify(source)
    if not checked.unmodified and not force:
        raise RecordModified(f"{source}: was modified ({checked.problems[0].text()}); for all problems run `repro "
                             f"verify {source}`, to reproduce it nevertheless add --force")
    with open_record(source) as root:
        first = read_record(root)
        require_code(str(source), first.plan.cells, code)
        if files := classes_from_files(first.plan):
            allow_code_of(first.folder.code, ((item.kind, item.code) for item in files))
            first = read_record(root)  # with the classes instead of their stand-ins
        if resume is not None:
            folder, plan, terms = reopen_reproduction(resume, first)
            require_allowed(str(source), (*first.plan.cells, *plan.cells), allowed)
        else:
            require_allowed(str(source), first.plan.cells, allowed)
            wanted_trials, terms = choose_trials(first, trials, wanted)
            plan = reduce_plan(first.plan, wanted_trials, detect(), fresh_seed())
            check_size(plan)
            say(announced(first, plan, terms), err=True)
            folder = prepare(plan, _suite_text(first), out or dated(f"{plan.suite.suite}-reproduce"),
                             brought=first.folder.code)
        origin = {"source": source.name, "identity": checked.identity, "of": figures_sha256(first),
                  "declared": terms.model_dump()}
        write_json(folder.root / FILE, {**origin, "answer": None})  # a running reproduction has no answer yet
        on = command(f"reproduce {quote(str(source))} --resume {quote(str(folder.root))}"
                     f"{permissions(first.plan.cells)}")
        second = execute(plan, folder, kept="nothing is judged; completed trials are kept",
                         next_step=f"resume with: {on}", force=force, is_settled=_Looks(first, folder, terms).end_at)
        found = judge(first, second, _chosen(second.plan), terms)
    write_json(folder.root / FILE, {**origin, **found.as_json()})
    return Reproduced(found, str(source), checked.identity, folder.root)


def _chosen(plan: Plan) -> list[tuple[str, int]]:
    return [(plan.cells[index].cell_id, repeat) for index, repeat in plan.order]


@dataclass(frozen=True, slots=True)
class _Looks:
    """The looks of a reproduction that is judged until it is settled."""

    first: Record
    folder: RunFolder
    terms: Terms

    def end_at(self, pairs: int) -> bool:
        """Return whether so many pairs give an answer at a declared look; the plan then ends with them."""
        if pairs not in {look.n for look in self.terms.looks}:
            return False
        second = read_record(self.folder.root)
        order = tuple((index, repeat) for index, repeat in second.plan.order if repeat < pairs)
        plan = second.plan.model_copy(update={"order": order})
        found = judge(self.first, replace(second, plan=plan), _chosen(plan), self.terms)
        say(f"look at {pairs} pairs: {found.answer}", err=True)
        if found.answer == "inconclusive":
            return False
        write_model(self.folder.plan, plan)
        return True


def require_trainings(record: Record, claims: Sequence[Claimed]) -> None:
    """Refuse to reproduce a figure that training alone decides from a record of one training repeated.

    Raises:
        UsageError: a cell of a claim has only one training.
    """
    once = {item.cell_id: item for item in repeated_cells(record) if item.trainings == 1}
    for claim in claims:
        spec = METRICS[claim.metric]
        if spec.by_training and (item := next((once[name] for name in claim.cells if name in once), None)):
            raise UsageError(f"this is a record of one training repeated ({item.short}), so its {spec.noun} "
                             "cannot be reproduced; in a new run let every trial train with its own seed")


def figures_sha256(record: Record) -> str:
    """Return a hash over the times and figures of the trials, which identifies an execution as a run or a bundle."""
    starts = [[item.trial_id, item.attempt, item.started_ms] for item in record.attempts]
    figures = [[item.trial_id, item.attempt, item.status, item.run_seconds,
                [[at.samples, at.wall_seconds, at.value] for at in item.curve]] for item in record.results]
    return hashlib.sha256(json.dumps([starts, figures]).encode()).hexdigest()


def reopen_reproduction(root: Path, first: Record) -> tuple[RunFolder, Plan, Terms]:
    """Open an interrupted reproduction of the record `first`, with the terms that it began with.

    Raises:
        OutputError: `root` is no run folder, or its plan is damaged.
        UsageError: it is no reproduction of this record.
    """
    folder, plan = reopen(root)
    found = _begun(root)
    same = plan.kind == "reproduction" and plan.digest == first.plan.digest and \
        found is not None and found.of == figures_sha256(first)
    if found is None or not same:
        raise UsageError(f"{root}: is not a reproduction of this record; to start one, omit --resume")
    trials = sorted((plan.cells[index].cell_id, repeat) for index, repeat in plan.order)
    reduce_plan(first.plan, trials, detect(), 0)  # raises, before any write, if this machine cannot
    return folder, plan, found.declared


class _Begun(Frozen):
    """The part of a reproduction's file that is written before it runs."""

    of: str
    declared: Terms


def _begun(root: Path) -> _Begun | None:
    """Return the execution that a reproduction started from, and its terms; None if its folder does not hold them."""
    try:
        found = json.loads(read_bounded(root / FILE))
        return _Begun.model_validate({name: found[name] for name in _Begun.model_fields})
    except (OutputError, ValueError, RecursionError, TypeError, KeyError):
        return None


def choose_trials(record: Record, trials: str | None, wanted: Wanted = Wanted()
                  ) -> tuple[list[tuple[str, int]], Terms]:
    """Return (cell id, repeat) of the trials to run, and the terms; the choice depends on no second result.

    Without ids those are the first repeats of the cells of the claims. Repeats that the record does not have get
    further seeds of its master seed, without results so far.

    Raises:
        UsageError: neither a number nor ids of this record, no trial has a result, or no answer is within reach.
    """
    have = {(item.cell_id, item.repeat): item.trial_id for item in record.results}
    if not have:
        raise UsageError("the record holds no result to reproduce")
    ids = _by_id(have, trials) if trials is not None and not trials.strip().isdecimal() else None
    kept = [cell.cell_id for cell in record.plan.cells if ids is None or cell.cell_id in {name for name, _ in ids}]
    claims = claims_of(record.plan, kept)
    require_trainings(record, claims)
    count = len({repeat for _, repeat in ids}) if ids is not None else _count(trials)
    terms = settled_terms(record, claims, count, wanted.margin, wanted.interaction, undecided=wanted.undecided,
                          until_settled=wanted.until_settled)
    by_bits = [key for key in have if is_bitwise(record.plan, key[0]) and (count is None or key[1] < count)]
    if wanted.until_settled and (ids is not None or by_bits):
        raise UsageError("--until-settled: " + ("cells that are judged by their hashes have no looks" if by_bits else
                                                "trials by their ids are all run; name a number of pairs"))
    if ids is not None:
        return ids, terms
    judged = dict.fromkeys(name for claim in claims for name in claim.cells)
    return [*((name, repeat) for repeat in range(terms.pairs) for name in judged), *by_bits], terms


def _count(trials: str | None) -> int | None:
    if trials is None:
        return None
    count = int(trials.strip()[:9])  # no record has so many; Python refuses numbers of thousands of digits
    if not 1 <= count <= MOST_SEEDS:
        raise UsageError(f"--trials {count}: must be from 1 to {MOST_SEEDS:,}")
    return count


def _by_id(have: Mapping[tuple[str, int], str], trials: str) -> list[tuple[str, int]]:
    by_id = {trial_id: key for key, trial_id in have.items()}
    wanted = [part.strip() for part in trials.split(",") if part.strip()]
    if unknown := next((part for part in wanted if part not in by_id), None):
        known = nearest(unknown, list(by_id)) if len(by_id) <= 12 else \
            f" among {len(by_id)}, for example {next(iter(by_id))}"
        raise UsageError(f"--trials: no trial with a result named {unknown!r}{known}")
    return [by_id[part] for part in dict.fromkeys(wanted)]


def announced(record: Record, plan: Plan, terms: Terms) -> str:
    """Return what the second execution is judged by, and which answers are within reach, before it runs."""
    claims = claims_of(record.plan, [cell.cell_id for cell in plan.cells])
    if not claims:
        return "judged by hashes: weights and evaluations bit for bit"
    lines = []
    for claim in claims:
        mean = measured(record, claim).mean
        was = "" if mean is None else f", {from_log(mean.value):.4g} in the record ({mean.figures} {claim.unit})"
        lines.append(f"judged: {METRICS[claim.metric].noun} of {claim.label}{was}")
    reached = "with a probability that the record does not tell" if terms.power is None else \
        f"with {'at least ' if terms.looks else ''}{100 * terms.power:.0f} % probability"
    looks = f", judged at {terms.look_words} until there is an answer" if terms.looks else ""
    lines.append(f"{terms.pairs} new {claims[0].unit}{looks}, margin {100 * terms.margin:g} %: an unchanged claim is "
                 f"found to be reproduced {reached}; the error of \"reproduced\" at a change of the margin, and of "
                 "\"not reproduced\" without a change, is at most 5 % each")
    return "\n".join(lines)


def reduce_plan(plan: Plan, chosen: Sequence[tuple[str, int]], machine: Machine, order_seed: int) -> Plan:
    """Return the plan of the record with the chosen trials only, its cells as written.

    Args:
        order_seed: for an order of its own: what only the order caused must not be reproduced with it.

    Raises:
        UsageError: this machine cannot run a cell, or a plug-in is not installed; the message gives the reason.
    """
    if absent := plan.absent_plugins():
        raise UsageError("; ".join(absent))
    kept = {name for name, _ in chosen}
    for cell in plan.cells:
        if cell.cell_id in kept and (why := cell.choices.unsupported(machine)):
            raise UsageError(f"{cell.label}: cannot run here: {why}")
    cells = tuple(cell for cell in plan.cells if cell.cell_id in kept)
    places = {cell.cell_id: place for place, cell in enumerate(cells)}
    order = tuple((places[cell_id], repeat) for cell_id, repeat in chosen)
    note = f"a reproduction: {len(order)} trials for the claims of a record of {len(plan.order)}"
    found = plan.model_copy(update={
        "kind": "reproduction", "base": "", "cells": cells, "order": order, "notes": (*plan.notes, note),
        "cores": machine.cores, "device_count": machine.device_count, "order_seed": order_seed,
    })
    return found.model_copy(update={"order": tuple(planned_order(found))})


def _suite_text(record: Record) -> str:
    try:
        return read_bounded(record.folder.suite).decode()
    except (OutputError, UnicodeDecodeError):
        return "# the record that was reproduced holds no suite file; plan.json has all of it\n"
