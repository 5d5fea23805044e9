"""Checks of a tuning: the choice follows from its record, its seeds are its own, and the budgets are those declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.bundle.verify_files import UNFIT, Problem, Verification, without_root
from repro.core.errors import OutputError
from repro.core.files import read_bounded
from repro.core.yaml_file import MAX_BYTES, YamlFile
from repro.record.derive.trial_log import TrialLog
from repro.record.folder.store import TUNING, Record, read_record
from repro.record.hopeless import HopelessRule
from repro.record.log.reading import read_log
from repro.record.log.schema import Bar, HopelessBar
from repro.record.result.results import Result
from repro.record.result.status import meaning
from repro.record.tuning import DECLARED, FROZEN, Declared, Tuning, read_declared, read_tuning, tuning_sha256
from repro.suite.contenders import tuning_suite
from repro.suite.levels import contender_key, contender_label
from repro.suite.model import Suite
from repro.suite.planning.plan import Plan
from repro.suite.recorded import reading
from repro.suite.tune import Tune


def has_tuning(root: Path) -> bool:
    """Return whether a run folder holds anything of a tuning."""
    return any((root / name).exists() for name in (TUNING, DECLARED, FROZEN))


def check_choice(root: Path, plan: Plan, found: Verification) -> None:
    """Check that the settings of a scored run are those that its tuning chose, by the declared rule.

    Args:
        plan: of the scored run.
    """
    tuned = plan.suite.tuned
    if tuned is not None and tuned.master_seed == plan.master_seed:
        found.add("plan.json", f"its trials have the master seed {plan.master_seed} that its settings were tuned with: "
                  "they were chosen on the data that they are scored on", "tuning")
    if not has_tuning(root):
        assert tuned is not None, "the caller asked"
        found.notes.append("its settings were tuned in another run, whose record is not part of this one: "
                           f"{tuned.record[:16]}; {_budgets(tuned.tune)}")
        return
    try:
        declared, tuning = read_declared(root), read_tuning(root)
    except UNFIT as error:
        found.add(TUNING, f"cannot be ranked: {' '.join(without_root(root, str(error)).split())[:200]}", "tuning")
        return
    if tuning is None:
        found.add(f"{TUNING}/plan.json", "is missing: the run was tuned, but not by this record", "missing")
        return
    found.count("tunings ranked again")
    found.extend(_seeds(plan, declared, tuning))
    found.extend(_unequal(declared, tuning))
    found.extend(wrong_bars(root / TUNING, f"{TUNING}/"))
    found.extend(_scored(root, plan, declared, tuning))


def _seeds(plan: Plan, declared: Declared, tuning: Tuning) -> Iterator[Problem]:
    """Find seeds that both phases share, and seeds other than those fixed before the tuning."""
    if tuning.master_seed == plan.master_seed:
        yield Problem(f"{TUNING}/plan.json", f"its trials have the master seed {plan.master_seed} of the scored ones: "
                      "settings were chosen on the data that they are scored on", "tuning")
    if plan.kind == "suite" and (plan.master_seed, plan.order_seed) != (declared.master_seed, declared.order_seed):
        yield Problem("plan.json", "its seeds are not those that were fixed before the tuning", "tuning")


def _unequal(declared: Declared, tuning: Tuning) -> Iterator[Problem]:
    """Find contenders that got another number of settings than was declared for them."""
    tune, ran = declared.suite.tune, tuning.record.plan
    if tune is None:
        yield Problem(DECLARED, "declares no tuning", "tuning")
        return
    spaces = {space.model_dump_json(exclude={"trials", "unequal"}): space for space in tune.spaces}
    for item in tuning.contenders:
        space = spaces.get(item.space.model_dump_json(exclude={"trials", "unequal"}))
        wanted = tune.trials if space is None else tune.trials_of(space)
        ended = sum(bool(one.results) for one in item.settings)
        if item.budget != wanted:
            yield Problem(f"{TUNING}/plan.json", f"the contender {item.label!r} got {item.budget} settings, {wanted} "
                          "are declared: its budget is not that of the others", "tuning")
        elif ended < sum(one.cell is not None for one in item.settings):
            yield Problem(f"{TUNING}/ledger.jsonl", f"only {ended} of the {item.budget} settings of the contender "
                          f"{item.label!r} have a result", "tuning")
    if _content(ran.suite) != _content(tuning_suite(declared.seeded)):
        yield Problem(f"{TUNING}/plan.json", f"its suite is not the one that {DECLARED} declares", "tuning")


def _content(suite: Suite) -> dict[str, Any]:
    """Return what two suites of one declaration have in common: each plan has the programs of its own cells."""
    return suite.model_dump(mode="json", by_alias=True, exclude={"programs"})


def _scored(root: Path, plan: Plan, declared: Declared, tuning: Tuning) -> Iterator[Problem]:
    """Find settings that were scored without having been chosen."""
    try:
        chosen = {contender_key(levels): (levels, setting) for levels, setting in tuning.choice}
    except OutputError as error:
        yield Problem(TUNING, f"{without_root(root, str(error))}, but the run was scored", "tuning")
        return
    scored = {contender_key(item.where): item.set_ for item in plan.suite.settings}
    for key, (levels, setting) in chosen.items():
        if key not in scored or scored[key] != setting:
            yield Problem("plan.json", f"the contender {contender_label(levels, setting or ())!r} is scored with "
                          f"{_text(scored.get(key))}, the tuning chose {_text(setting)}", "tuning")
    for item in plan.suite.settings:
        if contender_key(item.where) not in chosen:
            named = contender_label(item.where, item.values)
            yield Problem("plan.json", f"{named!r} has settings, but is not a contender of the tuning", "tuning")
    if plan.suite.tuned is None or plan.suite.tuned.record != tuning_sha256(tuning.record):
        yield Problem("plan.json", "suite.tuned names another tuning than the one in this record", "tuning")
    elif plan.suite.tuned.tune != declared.suite.tune:
        yield Problem("plan.json", f"suite.tuned states another search than {DECLARED}", "tuning")
    yield from _frozen(root, plan)


def _frozen(root: Path, plan: Plan) -> Iterator[Problem]:
    """Find a frozen suite that is not the one that was scored."""
    try:
        data = YamlFile(FROZEN, read_bounded(root / FROZEN, MAX_BYTES).decode()).data
        frozen = Suite.model_validate(data)
    except UNFIT as error:
        text = " ".join(without_root(root, str(error)).split())[:160]
        yield Problem(FROZEN, f"is not a readable suite: {text}", "schema")
        return
    if _content(frozen.model_copy(update={"master_seed": plan.master_seed})) != _content(plan.suite):
        yield Problem(FROZEN, "is not the suite that was scored", "tuning")


def wrong_bars(root: Path, below: str = "") -> Iterator[Problem]:
    """Find trials that were abandoned, or were not, against the declared rule.

    Args:
        root: folder of the tuning.
        below: what comes before the names of its files in messages.
    """
    try:
        record = read_record(root)
        with reading(record.plan.plugins):
            rule = HopelessRule.of(record.plan)
    except UNFIT:
        return  # other checks have reported it
    by_id = {item.trial_id: item for item in record.results}
    for trial in record.plan.trials():
        if (result := by_id.get(trial.trial_id)) is None:
            continue
        place, abandoned = f"{below}trials/{trial.trial_id}/result.json", result.status == "abandoned"
        if rule is None:
            if abandoned:
                yield Problem(place, "was abandoned, but the suite declares no rule for that", "tuning")
            continue
        stated, again = _stated_bar(record, result), rule.bar(trial, record.results)
        if stated is None:
            if abandoned:
                yield Problem(place, "was abandoned without a bar in its log", "tuning")
            elif again is not None and meaning(result.status).logged:
                yield Problem(place, f"its log states no bar; the rule gives {again.value:.6g} at {again.samples:,} "
                              "samples", "tuning")
            continue
        if again != stated:
            yield Problem(place, f"its log states the bar {stated.value:.6g} at {stated.samples:,} samples, which does "
                          "not follow from all earlier trials of its contender", "tuning")
        elif _hopeless(stated, result) != abandoned:
            yield Problem(place, f"was {'' if abandoned else 'not '}abandoned against the declared rule", "tuning")


def _stated_bar(record: Record, result: Result) -> Bar | None:
    """Return the last bar in a trial's log; None if there is none that can be read."""
    try:
        stated = TrialLog(read_log(record.folder.log(result.trial_id, result.attempt))).last(HopelessBar)
        return stated.value if stated else None
    except UNFIT:
        return None


def _hopeless(bar: Bar, result: Result) -> bool:
    """Return whether the rule abandons a trial with this course: a trial that had ended by then is not judged."""
    reached = next((place for place, point in enumerate(result.curve) if point.samples >= bar.samples), None)
    if reached is None or (value := result.curve[reached].value) is None:
        return False
    ended = reached == len(result.curve) - 1 and result.status != "abandoned"
    return not ended and bar.hopeless(value)


def _text(setting: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(setting.items())) if setting else "no settings"


def _budgets(tune: Tune) -> str:
    others: Sequence[str] = [f"{space.trials} for {space.for_}: {space.unequal}" for space in tune.spaces
                             if space.trials is not None]
    return f"{tune.trials} settings for every contender" + (f", but {'; '.join(others)}" if others else "")
