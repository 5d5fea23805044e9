"""Reproduction of a record: run its trials again and judge the results."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from repro.bundle.claim import claims_of, is_bitwise, measured
from repro.bundle.declared import MOST, chance_words, settled_terms, wider_than_effect
from repro.bundle.judge import Reproduction, judge
from repro.bundle.source import open_record
from repro.bundle.stated import ANSWER_FILE, figures_sha256
from repro.bundle.verify import verify
from repro.cli.terminal import command, say
from repro.cli.workflows.run import execute
from repro.compare.runs.asked import asked_words
from repro.core.errors import Exit, OutputError, RecordModified, UsageError, nearest
from repro.core.files import read_bounded, write_json, write_model
from repro.core.machine import BUSY, Machine, detect, load_now
from repro.core.numbers import spans
from repro.core.random_streams import fresh_seed
from repro.record.folder.limits import check_size
from repro.record.folder.resume import reopen
from repro.record.folder.store import Record, RunFolder, read_record
from repro.record.folder.stored_code import allow_code_of, classes_from_files
from repro.record.questions import began_otherwise, earlier_answers, keep_answer
from repro.runner.run import dated, prepare
from repro.suite.metrics import METRICS
from repro.suite.model import MOST_SEEDS
from repro.suite.planning.consent import permissions, require_allowed, require_code
from repro.suite.planning.plan import Plan, planned_order
from repro.suite.planning.terms import Terms


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
    blocks: str | None = None
    """Comma-separated seeds of the record whose pairs run; None: the first."""


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
        again = "" if self.reproduction.answer != "inconclusive" else \
            "\nnext:   state this answer; one more execution counts as a second one, and its answer stands beside it"
        return f"{self.reproduction.text()}\nrun:    {self.run}{again}"


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
    machine = detect()
    with open_record(source) as root:
        first = read_record(root)
        require_code(str(source), first.plan.cells, code)
        first = _with_classes(first)
        if resume is not None:
            folder, plan, terms = reopen_reproduction(resume, first)
            require_allowed(str(source), (*first.plan.cells, *plan.cells), allowed)
        else:
            require_allowed(str(source), first.plan.cells, allowed)
            wanted_trials, terms = choose_trials(first, trials, wanted)
            plan = reduce_plan(first.plan, wanted_trials, machine, fresh_seed(), terms)
            check_size(plan)
            folder = prepare(plan, _suite_text(first), out or dated(f"{plan.suite.suite}-reproduce"),
                             brought=first.folder.code)
        question = hashlib.sha256(f"reproduction of {terms.record}".encode()).hexdigest()
        if resume is not None and began_otherwise(question, plan):
            raise _other_terms(resume)
        # Repeating reproductions until one says "reproduced" errs more often than one does.
        before = asked_words("reproduction of this record", earlier_answers(question, plan))
        say(announced(first, plan, terms, before), err=True)
        if terms.power is not None:
            _warn_of_load(machine)
        origin = {"source": source.name, "identity": checked.identity, "of": terms.record}
        if resume is None:  # one that is resumed keeps its answer until there is another
            write_json(folder.root / ANSWER_FILE, {**origin, "answer": None})
            keep_answer(question, plan, folder.root, "not finished")  # counts until there is another
        on = command(f"reproduce {quote(str(source))} --resume {quote(str(folder.root))}"
                     f"{permissions(first.plan.cells)}")
        second = execute(plan, folder, kept="nothing is judged; completed trials are kept",
                         next_step=f"resume with: {on}", force=force, is_settled=partial(_end_at, first, folder, terms))
        found = judge(first, second, _chosen(second.plan), terms)
        said = [text for text in (picked(first, second.plan), before) if text]
        found = replace(found, warnings=(*found.warnings, *said))
    keep_answer(question, plan, folder.root, found.answer)
    write_json(folder.root / ANSWER_FILE, {**origin, "again": figures_sha256(second), **found.as_json()})
    return Reproduced(found, str(source), checked.identity, folder.root)


def _with_classes(record: Record) -> Record:
    """Return a record with the classes that its source holds, which may run, in place of their stand-ins."""
    files = classes_from_files(record.plan)
    if not files:
        return record
    allow_code_of(record.folder.code, ((item.kind, item.code) for item in files))
    return read_record(record.folder.root)


def _warn_of_load(machine: Machine) -> None:
    if (load := load_now(0.5)) > BUSY * machine.cores:
        say(f"warning: {load:.2g} of {machine.cores} cores are busy: that probability is one of a quiet machine",
            err=True)


def _chosen(plan: Plan) -> list[tuple[str, int]]:
    return [(plan.cells[index].cell_id, repeat) for index, repeat in plan.order]


def _end_at(first: Record, folder: RunFolder, terms: Terms, pairs: int) -> bool:
    """Return whether so many pairs give an answer at a declared look; the plan then ends with them."""
    if pairs not in {look.n for look in terms.looks}:
        return False
    second = read_record(folder.root)
    order = tuple((index, repeat) for index, repeat in second.plan.order if repeat < pairs)
    plan = second.plan.model_copy(update={"order": order})
    found = judge(first, replace(second, plan=plan), _chosen(plan), terms)
    say(f"look at {pairs} pairs: {found.answer}", err=True)
    if found.answer == "inconclusive":
        return False
    write_model(folder.plan, plan)
    return True


def reopen_reproduction(root: Path, first: Record) -> tuple[RunFolder, Plan, Terms]:
    """Open an interrupted reproduction of the record `first`, with the terms that it began with.

    Raises:
        OutputError: `root` is no run folder, or its plan is damaged.
        UsageError: it is no reproduction of this record, or its terms were changed.
    """
    folder, plan = reopen(root)
    terms = plan.terms
    if terms is None or terms.record != figures_sha256(first) or plan.digest != first.plan.digest:
        raise UsageError(f"{root}: is not a reproduction of this record; to start one, omit --resume")
    claims = claims_of(first.plan, [cell.cell_id for cell in plan.cells])
    again = settled_terms(first, claims, terms.pairs, terms.margin, terms.interaction, undecided=True,
                          until_settled=terms.until_settled)
    if (again.power is None) != (terms.power is None) or abs((again.power or 0) - (terms.power or 0)) > 1e-6:
        raise _other_terms(root)
    trials = sorted((plan.cells[index].cell_id, repeat) for index, repeat in plan.order)
    reduce_plan(first.plan, trials, detect(), 0, terms)  # raises, before any write, if this machine cannot
    return folder, plan, terms


def _other_terms(root: Path) -> UsageError:
    return UsageError(f"{root}: its terms are not those with which it began; for others, omit --resume")


def choose_trials(record: Record, trials: str | None, wanted: Wanted = Wanted()
                  ) -> tuple[list[tuple[str, int]], Terms]:
    """Return (cell id, repeat) of the trials to run, and the terms; the choice depends on no second result.

    Without ids and seeds those are the first repeats of the cells of the claims. Repeats that the record does not have
    get further seeds of its master seed, without results so far.

    Raises:
        UsageError: neither a number nor ids of this record, no trial has a result, or no answer is within reach.
    """
    have = {(item.cell_id, item.repeat): item.trial_id for item in record.results}
    if not have:
        raise UsageError("the record holds no result to reproduce")
    if not (wanted.margin is None or 0 < wanted.margin <= 1) or not 0 <= wanted.interaction <= 1:
        raise UsageError("--margin must be above 0 and at most 1, --interaction from 0 to 1")  # nan is neither
    ids = _by_id(have, trials) if trials is not None and not trials.strip().lstrip("-").isdecimal() else None
    kept = [cell.cell_id for cell in record.plan.cells if ids is None or cell.cell_id in {name for name, _ in ids}]
    claims = claims_of(record.plan, kept)
    blocks = None if wanted.blocks is None else _blocks({repeat for _, repeat in have}, wanted.blocks)
    count = len(blocks) if blocks else _count(trials) if ids is None else min((
        len(set[int].intersection(*({repeat for name, repeat in ids if name == cell} for cell in claim.cells)))
        for claim in claims), default=len(ids))
    if count == 0:
        raise UsageError("--trials: these trials leave no seed in both cells of a claim")
    terms = settled_terms(record, claims, count, wanted.margin, wanted.interaction, undecided=wanted.undecided,
                          until_settled=wanted.until_settled).model_copy(update={"record": figures_sha256(record)})
    by_bits = [key for key in have if is_bitwise(record.plan, key[0]) and (
        key[1] in blocks if blocks else count is None or key[1] < count)]
    if wanted.until_settled and (ids is not None or blocks or by_bits):
        raise UsageError("--until-settled: " + ("cells that are judged by their hashes have no looks" if by_bits else
                                                "chosen trials or blocks are all run; name a number of pairs"))
    if ids is not None:
        return ids, terms
    judged = dict.fromkeys(name for claim in claims for name in claim.cells)
    return [*((name, repeat) for repeat in blocks or range(terms.pairs) for name in judged), *by_bits], terms


def _blocks(have: set[int], text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    unknown = next((part for part in parts if part not in map(str, have)), None)
    if unknown is not None or not parts:
        raise UsageError(f"--blocks {unknown or text}: is no seed of the record; it has {spans(sorted(have))}")
    return sorted({int(part) for part in parts})


def picked(record: Record, plan: Plan) -> str:
    """Return that the seeds of a reproduction were chosen, and what that does to the claims of the record; "" if they
    are its first."""
    seeds = {repeat for _, repeat in plan.order}
    if seeds == {*range(len(seeds))}:
        return ""
    shown = []
    for claim in claims_of(record.plan, [cell.cell_id for cell in plan.cells]):
        part, whole = (measured(record, claim, kept) for kept in (dict.fromkeys(claim.cells, seeds), None))
        if part.mean and whole.mean:
            over_them, over_all = claim.texts([part.mean.value, whole.mean.value])
            shown.append(f"; {claim.label} is {over_them} in the record over them, {over_all} over all {whole.n}")
    return (f"seeds {spans(sorted(seeds))} were chosen by who reproduced the record{''.join(shown[:1])}; a choice that "
            "knows the figures of the record can choose the answer")


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
    if not wanted:
        raise UsageError("--trials: names no trial; give a number of pairs, or ids with commas")
    if unknown := next((part for part in wanted if part not in by_id), None):
        known = nearest(unknown, list(by_id)) if len(by_id) <= 12 else \
            f" among {len(by_id)}, for example {next(iter(by_id))}"
        raise UsageError(f"--trials: no trial with a result named {unknown!r}{known}")
    return [by_id[part] for part in dict.fromkeys(wanted)]


def announced(record: Record, plan: Plan, terms: Terms, before: str = "") -> str:
    """Return what the second execution is judged by, and which answers are within reach, before it runs.

    Args:
        before: that this record was reproduced before.
    """
    claims = claims_of(record.plan, [cell.cell_id for cell in plan.cells])
    bits = sum(is_bitwise(record.plan, cell.cell_id) for cell in plan.cells)
    hashes = "judged by hashes: weights and evaluations bit for bit"
    if not claims:
        return hashes
    lines, coarse = [f"{hashes} of {bits} cell{'s' if bits > 1 else ''}"] if bits else [], ""
    sides = {claim: measured(record, claim) for claim in claims}
    for claim, found in sides.items():
        corrected = ", corrected for its looks" if found.is_corrected else ""
        was = f", {claim.texts([found.mean.value])[0]} in the record ({claim.counted(found.n)}{corrected})" \
            if found.mean else ""
        lines.append(f"judged: {METRICS[claim.metric].noun} of {claim.label}{was}")
        coarse = coarse or found.too_coarse(terms.margin)
    reached = "with a probability that the record does not tell" if terms.power is None else \
        f"with {'at least ' if (terms.looks or len(claims) > 1) and 0 < terms.power <= MOST else ''}" \
        f"{chance_words(terms.power)} probability"
    if coarse and terms.power:
        reached += f", if all trials end with the weights of the record, because {coarse}"
    looks = f", judged at {terms.look_words} until there is an answer" if terms.looks else ""
    lines.append(f"{claims[0].counted(terms.pairs, 'new')}{looks}, margin {100 * terms.margin:g} %: "
                 f"{'an unchanged claim is' if len(claims) == 1 else f'all {len(claims)} claims, if unchanged, are'} "
                 f"found to be reproduced {reached}{wider_than_effect(sides, terms.margin)}")
    choice = picked(record, plan)
    if not choice:
        lines.append("over all records, \"reproduced\" at a change of the margin and \"not reproduced\" without a "
                     "change err in at most 5 % each, if the interaction of session and cell has a standard deviation "
                     f"of at most {100 * terms.interaction:g} % (--interaction)")
    return "\n".join([*lines, *(text for text in (choice, before) if text)])


def reduce_plan(
    plan: Plan, chosen: Sequence[tuple[str, int]], machine: Machine, order_seed: int, terms: Terms
) -> Plan:
    """Return the plan of the record with the chosen trials only, its cells as written.

    Args:
        terms: declared for them.
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
    seeds = {repeat for _, repeat in order}
    chosen_words = "" if seeds == {*range(len(seeds))} else f", of seeds that were chosen: {spans(sorted(seeds))}"
    note = f"a reproduction: {len(order)} trials for the claims of a record of {len(plan.order)}{chosen_words}"
    found = plan.model_copy(update={
        "kind": "reproduction", "terms": terms, "base": "", "solo": (), "cells": cells, "order": order,
        "notes": (*plan.notes, note), "cores": machine.cores, "device_count": machine.device_count,
        "order_seed": order_seed,
    })
    return found.model_copy(update={"order": tuple(planned_order(found))})


def _suite_text(record: Record) -> str:
    try:
        return read_bounded(record.folder.suite).decode()
    except (OutputError, UnicodeDecodeError):
        return "# the record that was reproduced holds no suite file; plan.json has all of it\n"
