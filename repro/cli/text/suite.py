"""Suites, plans and the outcome of runs as text for a terminal."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from repro.cli.terminal import command
from repro.cli.text.compare import calibration_text, effect_lines, quality_lines
from repro.cli.workflows.progress import duration
from repro.core.errors import visible
from repro.core.numbers import plain_sum, spans
from repro.core.source_code import SourceCode, is_file_kind
from repro.record.result.status import counted
from repro.record.tuning import RULE, TunedContender, Tuning, TuningCost
from repro.seams.preconditioner import Work
from repro.suite.levels import contender_label
from repro.suite.metrics import METRICS
from repro.suite.model import Suite
from repro.suite.planning.cost import AS_PILOT, SETUP_SECONDS, Cost, estimate
from repro.suite.planning.plan import Plan
from repro.suite.tune import setting_text
from repro.tables.cell_tables import median_text
from repro.tables.verdicts import comparison_sentence
from repro.worker.kept_steps import memory_words

if TYPE_CHECKING:
    from repro.cli.workflows.run import Ended
    from repro.cli.workflows.tuning import Phases
    from repro.compare import Summary
    from repro.compare.findings import Findings
    from repro.runner.pool.engines import Pool


TRIAL_KEYS = ("measurement", "workload", "precision", "optimizer", "preconditioner", "batch", "stop")
"""Fields that all cells share, if the suite states them there."""


def suite_text(suite: Suite, sources: Mapping[str, SourceCode] = MappingProxyType({})) -> str:
    """Return what a suite compares, in at most a screen of text.

    Args:
        sources: file name -> source of the classes that it takes from files.
    """
    version = f" {suite.version}" if suite.version else ""
    lines = [f"{suite.suite}{version}: {suite.title}"]
    if suite.description:
        lines += ["", *(line.strip() for line in suite.description.strip().splitlines())]
    seed = "drawn for every run" if suite.master_seed is None else str(suite.master_seed)
    rows = [row for row in (("source", suite.source), ("expected", suite.expected)) if row[1]]
    rows += [("repeats", str(suite.seeds)), ("master seed", seed)]
    rows += [("changed", f"{item.version}: {item.text}") for item in suite.changes]
    rows += [("factor", f"{key} = {', '.join(map(_level, levels))}") for key, levels in suite.matrix.items()]
    if suite.baseline:
        rows.append(("baseline", _pattern(suite.baseline)))
    if suite.primary:
        rows.append(("primary", f"{_pattern(suite.primary.candidate)} against {_pattern(suite.primary.baseline)}, "
                                f"{suite.primary.metric}"))
    if suite.contrasts:
        rows.append(("contrasts", f"main effects of {', '.join(suite.contrasts)}, paired over all other factors"))
    if suite.sequential:
        rows.append(("looks", suite.design.words))
    rows += [*_tuning_rows(suite), ("margin", f"{suite.margin:g} counts as the same")]
    if suite.horizon is not None:
        rows.append(("horizon", f"{suite.horizon:g}, up to which runs that missed the target are compared"))
    rows += [(key, _level(suite.trial[key])) for key in TRIAL_KEYS if suite.trial.get(key) is not None]
    rows += [("executes", f"{text}, when it is run") for text in dict.fromkeys(_commands(suite))]
    files = {source.root / name: content for source in sources.values() for name, content in source.files.items()}
    rows += [("executes", f"{path}, sha256 {hashlib.sha256(content).hexdigest()[:16]}, when it is planned or run")
             for path, content in files.items()]
    return "\n".join([*lines, "", *(f"{label + ':':<13}{value}" for label, value in rows)])


def _commands(suite: Suite) -> Iterator[str]:
    """Yield the commands of programs that the trial or a factor starts, as they are written."""
    for engine in (suite.trial.get("engine"), *suite.matrix.get("engine", ())):
        if isinstance(engine, dict) and isinstance(engine.get("run"), list):
            places = "".join(f", {name} {engine[name]}" for name in ("folder", "commit", "files") if name in engine)
            yield shlex.join(map(str, engine["run"])) + places


def plan_text(
    plan: Plan, cost: Cost, out_of_reach: Sequence[str] = (), drawn: Sequence[str] = (), phases: Phases | None = None,
) -> str:
    """Return the trials, the skipped combinations with their reasons, and the cost.

    Args:
        phases: of a suite that is tuned first, which `plan` is the draft of.
        out_of_reach: what the repeats of the plan cannot show.
        drawn: seeds that the run will draw for itself.
    """
    version = f" {plan.suite.version}" if plan.suite.version else ""
    count = f"at most {len(plan.order)} trials of {len(plan.cells)} cells" if plan.design.looks else \
        f"{len(plan.order)} trials = {len(plan.cells)} cells x {plan.design.repeats} repeats"
    place = f"{plan.device_count} GPU(s)" if plan.uses_gpus else f"{plan.cores} CPU cores"
    lines = [phases_text(phases), ""] if phases else []
    lines += [f"{plan.suite.suite}{version}: {count} on {place}",
              f"suite digest {plan.digest[:16]}, method {plan.method}"]
    if "master_seed" in drawn:
        lines.append("seeds: drawn by each run, for its data and its order; --master-seed N states those of the data")
    elif drawn:
        lines.append(f"seeds: master seed {plan.master_seed} as stated; each run draws its order")
    width = max(len(cell.label) for cell in plan.cells)
    lines += ["", *(f"  {cell.label:<{width}}  {cell.choices.work}" for cell in plan.cells)]
    if plan.design.is_contest:
        lines += ["", f"claim of every cell: {plan.cells[0].choices.stop.claim}"]
    if plan.design.looks:
        lines += ["", f"looks: {plan.design.words}"]
    if plan.skipped:
        lines += ["", "skipped:"]
        lines += [f"  {item.label}: {item.reason}" for item in plan.skipped]
    lines += [f"note: {note}" for note in (*plan.notes, *out_of_reach)]
    works = dict.fromkeys(
        f"  {item.preconditioner.label}, {item.processes} process{'es' if item.processes > 1 else ''}: {_text(work)}"
        for item in plan.trainings() if (work := item.preconditioner_work) != Work())
    if works:
        lines += ["", "own work of preconditioners in a mean step (modelled by formula):", *works]
    lines += ["", text] if (text := memory_words(plan.trainings())) else []
    return "\n".join([*lines, "", cost_text(plan, cost)])


def cost_text(plan: Plan, cost: Cost) -> str:
    """Return how long a plan takes, or how to find out."""
    if cost.full_budget_seconds is not None:
        each = "" if cost.label == AS_PILOT else " if every trial uses its whole budget"
        return f"about {duration(cost.full_budget_seconds)}{each} ({cost.label})"
    most = plain_sum(plan.cells[index].choices.timeout_seconds for index, _ in plan.order)
    return (f"duration unknown, at most {duration(most)} by timeout_seconds; one trial of each cell tells: "
            f"{command('run SUITE --seeds 1 --out pilot')}, then {command('plan SUITE --pilot pilot')}")


@dataclass(frozen=True, slots=True)
class PoolCost:
    """Rounds, speed-up and cost of a plan in a pool, if all blocks take equally long."""

    lanes: int
    """That have a block to run."""
    blocks: int
    rounds: int
    """Shards that the busiest lane runs."""
    speedup: float | None
    """Against one lane; every shard has to start. None, as below: how long a trial takes is unknown."""
    seconds: float | None
    """Of the whole run, modelled."""
    lane_hours: float | None
    """All lanes for as long as each runs, modelled."""
    full_seeds: int
    """Seeds that fill the last round."""
    wasted_blocks: int
    """Blocks that may have run in vain when a look ends the run."""
    solo: tuple[int, ...]
    """Seeds of the blocks that also run alone, before all others."""
    solo_seconds: float | None
    """They take, part of `seconds`; of the lane-hours it is the time of one lane."""

    @classmethod
    def of(cls, plan: Plan, pool: Pool, cost: Cost) -> PoolCost:
        """Return the cost of a plan in a pool."""
        blocks, each = len({repeat for _, repeat in plan.order}), pool.blocks_per_task
        shards = -(-blocks // each)
        lanes = min(pool.lanes or plan.device_count or 1, shards)
        rounds = -(-shards // lanes)
        wasted = min(lanes * each - 1, blocks - plan.design.looks[0]) if plan.design.looks else 0
        whole = cost.full_budget_seconds
        if whole is None:
            return cls(lanes, blocks, rounds, None, None, None, rounds * lanes * each, wasted, plan.solo, None)
        block = (whole - SETUP_SECONDS) / blocks
        alone = -(-len(plan.solo) // each) * SETUP_SECONDS + len(plan.solo) * block
        seconds = alone + rounds * SETUP_SECONDS + min(rounds * each, blocks) * block
        return cls(lanes, blocks, rounds, (SETUP_SECONDS + blocks * block) / seconds, seconds,
                   (alone + shards * SETUP_SECONDS + blocks * block) / 3600, rounds * lanes * each, wasted, plan.solo,
                   alone)

    def text(self) -> str:
        rounds = f"{self.rounds} round{'s' * (self.rounds > 1)}"
        lines = [f"in the pool: {self.blocks} blocks on {self.lanes} lanes in {rounds}"]
        if self.seconds is not None:
            lines[0] += (f", {self.speedup:.3g} x as fast as one lane, about {duration(self.seconds)} and "
                         f"{self.lane_hours:.2g} lane-hours (modelled: every trial uses its whole budget, and all "
                         "blocks take equally long)")
        if self.solo:
            takes = "" if self.solo_seconds is None else f", about {duration(self.solo_seconds)} of it (modelled)"
            lines.append(f"  first {len(self.solo)} blocks run alone, one lane busy: seeds {spans(self.solo)}{takes}; "
                         "no verdict counts them")
        if self.full_seeds > self.blocks:
            lines.append(f"  {self.full_seeds} seeds would fill the last round, in the same time")
        if self.wasted_blocks:
            lines.append(f"  a look that ends the run may leave up to {self.wasted_blocks} blocks that ran in vain")
        return "\n".join(lines)


def _text(work: Work | None) -> str:
    if work is None:
        return "unknown, and not in the cost: the workload does not state its layers"
    sent = f", {work.sent_bytes / 1e3:,.3g} kB in {work.messages:.3g} messages" if work.messages else ""
    return f"{work.flops / 1e6:,.3g} Mflop over all ranks{sent}"


def _level(level: Any) -> str:
    if isinstance(level, dict):
        kind = level.get("kind")
        rest = ", ".join(f"{key}={value}" for key, value in level.items()
                         if key != "kind" and not (key == "code" and is_file_kind(str(kind))))
        return (f"{kind} ({rest})" if rest else str(kind)) if kind else rest
    return str(level)


def _pattern(wanted: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_level(value)}" for key, value in wanted.items())


def _tuning_rows(suite: Suite) -> list[tuple[str, str]]:
    """Return what a suite declares about its tuning, or where its settings come from."""
    tune = suite.tune or (suite.tuned.tune if suite.tuned else None)
    rows = [("setting", f"{contender_label(item.where, item.values)}: "
                        f"{setting_text(item.set_) if item.set_ is not None else 'none, not scored'}")
            for item in suite.settings]
    if tune is None:
        return rows
    who = "every cell" if tune.contenders is None else f"the levels of {', '.join(tune.contenders)}"
    rows.append(("tuning" if suite.tune else "tuned by",
                 f"{who}, each with {tune.trials} settings by search {tune.search}, "
                 f"{tune.seeds} seed{'s' if tune.seeds > 1 else ''}, ranked by {METRICS[tune.metric].noun}"))
    for space in tune.spaces:
        axes = "; ".join(f"{key}: {axis.text()}" for key, axis in sorted(space.space.items()))
        own = f", {space.trials} settings: {space.unequal}" if space.trials is not None else ""
        rows.append(("space", f"{axes} (origin: {' '.join(space.origin.split())}{own})"))
    return rows


def phases_text(phases: Phases) -> str:
    """Return the tuning of a suite before it runs: trials, contenders with their spaces, the rule, the cost."""
    plan, tune = phases.tuning, phases.declared.suite.tune
    assert tune is not None
    settings = [len(item.settings) for item in phases.contenders]
    budget = f"{settings[0]} settings" if len(set(settings)) == 1 else f"{min(settings)} to {max(settings)} settings"
    many = "s" if len(settings) > 1 else ""
    lines = [f"phase 1, tuning: {len(plan.order)} trials = {len(settings)} contender{many} x {budget} x {tune.seeds} "
             f"seed{'s' if tune.seeds > 1 else ''}, search {tune.search}, by {METRICS[tune.metric].noun}",
             f"rule: {RULE}"]
    if tune.hopeless is not None:
        lines.append(f"hopeless: a trial is abandoned if after {tune.hopeless.at:.0%} of its budget its quality is "
                     "worse than the median of its contender's earlier trials at that point, once "
                     f"{tune.hopeless.after} have ended")
    for item in phases.contenders:
        lines += ["", f"  {item.label}: {len(item.settings)} settings"]
        lines += [f"    {key}: {axis.text()}  ({axis.width})" for key, axis in sorted(item.space.space.items())]
        lines.append(f"    origin: {' '.join(item.space.origin.split())}")
        if item.space.unequal:
            lines.append(f"    another budget: {' '.join(item.space.unequal.split())}")
    if plan.skipped:
        lines += ["", "skipped:", *(f"  {item.label}: {item.reason}" for item in plan.skipped)]
    cost = estimate(plan)
    first, second = cost.full_budget_seconds, estimate(phases.draft).full_budget_seconds
    if first is not None and second is not None:
        lines += ["", f"about {duration(first)} for the tuning and {duration(first + second)} for both phases if every "
                  f"trial uses its whole budget ({cost.label})"]
    return "\n".join([*lines, "", "phase 2, scored:"])


def _choice(tuning: Tuning, item: TunedContender) -> str:
    best, spec = item.chosen, METRICS[tuning.tune.metric]
    if best is None:
        return f"not scored: none of its {item.budget} settings could be judged ({item.ends})"
    chosen = f"{setting_text(best.values)}, the best of {item.budget} settings"
    if best.figure is not None:
        return f"{chosen}, {spec.noun} {best.figure:,.6g}"
    return f"{chosen}; no setting reached the target with every seed; best quality {best.quality:.4g}"


def _cost(cost: TuningCost) -> str:
    given_up = f", {cost.abandoned} abandoned" if cost.abandoned else ""
    return (f"{cost.trials} trials{given_up}, {duration(cost.wall_seconds)}, {cost.processor_seconds:,.0f} processor "
            "seconds held")


def ended_text(ended: Ended) -> str:
    """Return the results of a run; its last lines are the answer, its certainty, where to look and what is next."""
    found = ended.found
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(ended.trials.items())) or "none has ended"
    lines = [*cell_lines(found.summaries), f"trials: {statuses}",
             *(visible(f"{item.word}: {item.line}") for item in found.warnings)]
    if tuning := ended.tuning:
        lines += [visible(f"tuned:  {item.label}: {_choice(tuning, item)} ({_cost(item.cost)})")
                  for item in tuning.contenders]
        lines.append(visible(f"tuning: {_cost(tuning.cost)}, in a separate record: {tuning.record.folder.root}"))
    lines += ["", *answer_lines(found), calibration_text(found.calibration), "",
              f"report: {ended.report or 'not written'}", f"run:    {ended.folder}"]
    if ended.tracking:
        shown = "not replayed, see the warning" if ended.warning() else f"open it with: {command('ui')}"
        lines.append(f"mlflow: {ended.tracking.uri}  ({shown})")
    return "\n".join([*lines, f"next:   {ended.next_step}"])


def cell_lines(summaries: Sequence[Summary]) -> list[str]:
    """Return the cells with their medians."""
    width = max((len(item.label) for item in summaries), default=0)
    resumed = " ({} resumed from a checkpoint; the lost time is on their clocks)"
    return [f"{item.label:<{width}}  {item.ok} of {item.n} {item.done}"
            f"{f', median {median_text(item)}' if counted(item.statuses) or not item.n else ': no valid trial'}"
            + (resumed.format(item.resumed) if item.resumed else "") for item in summaries]


def answer_lines(found: Findings) -> list[str]:
    """Return claims, the primary contrast and each main effect, one sentence each."""
    primary = found.primary
    if primary is not None:
        answers = [comparison_sentence(primary), *([primary.also] if primary.also else []),
                   *(visible(f"caution: {text}") for text in primary.cautions)]
    else:
        more = "; every contrast, corrected for their number: repro compare RUN" if found.comparisons else ""
        answers = [] if found.effects else [visible(found.without_primary) + more]
    qualities = map(visible, quality_lines(found.claims))
    return [*qualities, *answers, *(line for item in found.effects for line in effect_lines(item))]
