"""FireCaffe's practices (Iandola et al., CVPR 2016, arXiv:1511.00175): F1 to F3 have headings there, the paper follows
the others without one. The paper has no list of ten: F4 to F10 are this project's reading of its practice."""

from __future__ import annotations

from repro.audit.rules.facts import HYPERPARAMETERS, CellFacts, DataFacts, Facts
from repro.audit.rules.rule import ALWAYS, Judged, Rule, count, join, lacks, many, untold
from repro.compare import Comparison
from repro.suite.metrics import METRICS

SOURCE = "FireCaffe, arXiv:1511.00175"
HEADED = f"{SOURCE}, headed practice"
FOLLOWED = f"{SOURCE}, followed without a heading (our reading)"


def public_data(facts: Facts) -> Judged:
    """F1."""
    if simulated := [cell.label for cell in facts.cells if cell.simulated]:
        return "fail", f"simulated, nothing was trained: {join(simulated)}"
    if facts.data is None or not facts.data:
        return untold(facts, "no data set is named")
    if synthetic := [item.name for item in facts.data if item.synthetic]:
        return "fail", f"synthetic data, which say nothing about real quality: {join(synthetic)}"
    if lacking := [f"{item.name} without {join(gaps)}" for item in facts.data if (gaps := _unstated(item))]:
        return lacks(facts, f"data not identified: {join(lacking)}")
    runs = facts.ended
    if not runs or any(run.quality is None or (run.throughput is None and run.seconds is None) for run in runs):
        bare = sum(run.quality is None for run in runs)
        return lacks(facts, f"{bare} of {many(runs, 'run')} without a quality")
    described = join(f"{item.name} {item.version}, sha256 {str(item.digest)[:12]}, {item.train_samples} + "
                 f"{item.eval_samples} samples, {item.licence}" for item in facts.data)
    return "pass", f"speed and quality of {many(runs, 'run')} on {described}"


def _unstated(item: DataFacts) -> list[str]:
    wanted = {"version": item.version, "hash": item.digest, "training size": item.train_samples,
              "evaluation size": item.eval_samples, "licence": item.licence, "source": item.source}
    return [name for name, value in wanted.items() if value is None]


def hyperparameters(facts: Facts) -> Judged:
    """F2."""
    if not facts.cells:
        return "cannot tell", "there is no cell"
    gaps = {name: sum(name not in cell.hyperparameters for cell in facts.cells) for name in HYPERPARAMETERS}
    if lacking := [f"{name} ({number} of {many(facts.cells, 'cell')})" for name, number in gaps.items() if number]:
        return untold(facts, f"not stated: {', '.join(lacking)}")
    return "pass", f"{len(HYPERPARAMETERS)} of {len(HYPERPARAMETERS)} stated for all {many(facts.cells, 'cell')}: " \
                   f"{', '.join(HYPERPARAMETERS)}"


def _no_scaling(facts: Facts) -> Judged | None:
    if facts.contrasts is None:
        return "not applicable", "no speed-up is stated"
    counts = {cell.workers for cell in facts.cells}
    if None in counts:
        return "cannot tell", "the number of workers is not stated for every cell"
    if len(counts) < 2:
        workers = next(iter(counts), 0) or 0
        return "not applicable", f"every cell has {count(workers, 'worker')}, so no scaling is stated"
    return None


def single_worker(facts: Facts) -> Judged:
    """F3."""
    if found := _no_scaling(facts):
        return found
    several = [cell for cell in facts.cells if (cell.workers or 0) > 1]
    singles = [cell for cell in facts.cells if cell.workers == 1]
    if unstated := [cell.label for cell in facts.cells if cell.model is None or cell.target is None]:
        return "cannot tell", f"model or target not stated: {join(unstated)}"
    bases = {(one.model, one.target) for one in singles}
    if alone := [cell.label for cell in several if (cell.model, cell.target) not in bases]:
        return "fail", f"no single-worker cell of the same model and target for {len(alone)} of " \
                       f"{many(several, 'cell')}: {join(alone)}"
    if missed := [one.label for one in singles if one.reached == 0]:
        return "fail", f"the single-worker baseline never reached the target: {join(missed)}"
    return "pass", f"{many(several, 'cell')} of several workers against {join(one.label for one in singles)}, " \
                   "of the same model and target"


def accuracy_held(facts: Facts) -> Judged:
    """F4."""
    if not facts.contrasts:
        return "not applicable", "no speed-up is stated"
    quick = [item for item in facts.comparisons or () if item.verdict in ("faster", "slower", "same")]
    if facts.comparisons is not None and not quick:
        return "not applicable", f"0 of {many(facts.comparisons, 'comparison')} decided, so there is no " \
                                 "speed-up"
    pairs = facts.contrasts if facts.comparisons is None else [(item.candidate, item.baseline) for item in quick]
    cells = [facts.cell(name) for name in dict.fromkeys(name for pair in pairs for name in pair)]
    runs = [run for cell in cells for run in cell.runs if run.reached is not None]
    if bare := [run.name for run in runs if run.quality is None]:
        return lacks(facts, f"quality unknown in {len(bare)} of {many(runs, 'run')}: {join(bare)}")
    lost = [f"{one.label} ({one.share} against {other.share})" for one, other in
            (_faster(facts, item) for item in quick if item.verdict != "same" and not METRICS[item.metric].to_target)
            if one.reached * len(other.runs) < other.reached * len(one.runs)]
    if lost:
        return "fail", f"fewer runs of the faster cell reach the target: {join(lost)}"
    return "pass", f"{many(pairs, 'speed-up')}, each with the quality of all its runs; " \
                   f"{sum(cell.reached for cell in cells)} of {len(runs)} reached the target"


def _faster(facts: Facts, item: Comparison) -> tuple[CellFacts, CellFacts]:
    """Return the faster cell and the other one."""
    candidate, baseline = facts.cell(item.candidate), facts.cell(item.baseline)
    return (baseline, candidate) if item.verdict == "slower" else (candidate, baseline)


def full_training(facts: Facts) -> Judged:
    """F5."""
    reached = [run for _, run in facts.runs if run.reached]
    if not facts.runs:
        return lacks(facts, "there is no run")
    if not reached:
        return "fail", f"not one of {many(facts.runs, 'run')} reached its target, so there is no time to train"
    if lacking := [run.name for run in reached if run.seconds is None or run.epochs is None]:
        return untold(facts, f"time or epochs to the target unknown for {len(lacking)} of {many(reached, 'run')}")
    never = [cell.label for cell in facts.cells if cell.runs and cell.reached == 0]
    rest = f"; never: {join(never)}" if never else ""
    return "pass", f"time and epochs to the target of all {many(reached, 'run')} that reached it{rest}"


def hardware(facts: Facts) -> Judged:
    """F6."""
    if facts.hardware is None:
        return lacks(facts, facts.no_hardware)
    several = facts.several
    if unknown := [cell.label for cell in several if cell.bandwidth is None and not cell.loopback]:
        what = facts.interconnect or "interconnect not stated"
        return untold(facts, f"{facts.hardware}; {what}: bandwidth not recorded for {len(unknown)} of "
                              f"{many(several, 'cell')} of several workers")
    rates = {f"{cell.bandwidth / 1e6:g} Mbit/s" for cell in several if cell.bandwidth is not None}
    if several and not rates:
        return "pass", f"{facts.hardware}; all ranks on one machine, so there is no interconnect"
    return "pass", facts.hardware + (f"; slowest link {join(sorted(rates))}" if rates else "; one worker a cell")


def same_batch(facts: Facts) -> Judged:
    """F7."""
    if found := _no_scaling(facts):
        return found
    if any(cell.global_batch is None or cell.others is None for cell in facts.cells):
        return "cannot tell", "batch size or settings not stated for every cell"
    least = min(cell.workers or 0 for cell in facts.cells)
    scaled = [cell for cell in facts.cells if (cell.workers or 0) > least]
    fewest: dict[tuple[int | None, str | None], int] = {}
    for cell in facts.cells:
        alike = (cell.global_batch, cell.others)
        fewest[alike] = min(fewest.get(alike, cell.workers or 0), cell.workers or 0)
    if only := [cell.label for cell in scaled if fewest[cell.global_batch, cell.others] == cell.workers]:
        return "fail", f"workers and batch grow together, with no cell of fewer workers at the same batch and " \
                       f"otherwise equal, for {len(only)} of {many(scaled, 'cell')}: {join(only)}"
    batches = sorted({cell.global_batch for cell in facts.cells if cell.global_batch is not None})
    return "pass", f"{many(scaled, 'cell')}, each with a cell of fewer workers at the same batch " \
                   f"({', '.join(map(str, batches))})"


def single_model(facts: Facts) -> Judged:
    """F8. A record shows one hash of the weights per run, and what each workload states about its evaluations."""
    if facts.models is not None and facts.models > 1:
        return "fail", f"the answers of {facts.models} models are combined"
    if facts.augmented:
        return "fail", "test samples are shown more than once (crops, flips or the like)"
    if facts.models == 1 and facts.augmented is False:
        return "pass", "stated: one model, each test sample shown once"
    if not facts.whole:
        return "cannot tell", "the number of models and of views of a test sample is not in this source"
    return _one_view(facts)


def _one_view(facts: Facts) -> Judged:
    runs = facts.ended
    known, data = sum(bool(run.weights) for run in runs), facts.data or ()
    every = sum(run.every_rank is True for run in runs)
    on_ranks = f" ({every} of them compared on every rank)" if every < len(runs) else (
        ", equal on every rank" if runs else "")
    described = f"{known} of {many(runs, 'run')} end in one set of weights, whose hash is recorded{on_ranks}"
    if several := [item.name for item in data if (item.test_views or 0) > 1]:
        return "fail", f"an evaluation shows each test sample several times: {join(several)}"
    silent = [item.name for item in data if item.test_views is None]
    if silent or not data:
        return "cannot tell", f"{described}; how often a test sample is shown is not stated" + (
            f" for {join(silent)}" if silent else "")
    if known < len(runs) or not runs:
        return "cannot tell", described
    return "pass", f"{described}; the workload states that an evaluation shows each test sample once, as it is: " \
                   f"{join(item.name for item in data)}"


def communication(facts: Facts) -> Judged:
    """F9."""
    several = facts.several
    if not several:
        return "not applicable", "no cell has several workers"
    unknown = [cell.label for cell in several if not any(run.communicated for run in cell.runs)]
    if unknown and all(cell.loopback for cell in several):
        return "not applicable", "all ranks are on one machine: no link carries what the backend's collectives send"
    if unknown:
        return untold(facts, f"bytes sent and time waited are not recorded for {len(unknown)} of "
                             f"{many(several, 'cell')} of several workers: {join(unknown)}")
    return "pass", f"bytes sent and time waited are recorded for all {many(several, 'cell')} of several workers"


def same_architecture(facts: Facts) -> Judged:
    """F10."""
    if not facts.contrasts:
        return "not applicable", "nothing is compared"
    pairs = [(facts.cell(one), facts.cell(other)) for one, other in facts.contrasts]
    if unstated := [cell.label for pair in pairs for cell in pair if cell.model is None]:
        return untold(facts, f"the model is not stated: {join(dict.fromkeys(unstated))}")
    if unlike := [f"{one.label} against {other.label}" for one, other in pairs if one.model != other.model]:
        return "fail", f"different models or data in {len(unlike)} of {many(pairs, 'comparison')}: {join(unlike)}"
    if begun := [f"{one.label} against {other.label}" for one, other in pairs if _unlike_start(one, other)]:
        return "fail", f"one seed gave different initial weights: {join(begun)}"
    return "pass", f"the same model on both sides of {many(pairs, 'comparison')}"


def _unlike_start(one: CellFacts, other: CellFacts) -> bool:
    starts = {run.seed: run.initial for run in other.runs if run.seed and run.initial}
    return any(run.initial and run.seed in starts and starts[run.seed] != run.initial for run in one.runs)


RULES = (
    Rule("F1", f"{HEADED} 1", "Speed and quality on a public data set", public_data, ALWAYS, of_target=True),
    Rule("F2", f"{HEADED} 2", "All hyper-parameters are reported", hyperparameters, ALWAYS, of_training=True),
    Rule("F3", f"{HEADED} 3", "Speed-ups are against a named single-worker baseline", single_worker, ALWAYS,
         of_training=True),
    Rule("F4", FOLLOWED, "No speed-up without the quality next to it", accuracy_held, ALWAYS, of_target=True),
    Rule("F5", FOLLOWED, "Full time to train and epochs, not only samples a second", full_training, ALWAYS,
         of_target=True),
    Rule("F6", FOLLOWED, "Hardware and interconnect are disclosed, with bandwidth", hardware),
    Rule("F7", FOLLOWED, "Same-batch scaling is shown separately from larger-batch scaling", same_batch,
         of_training=True),
    Rule("F8", FOLLOWED, "A single model, no test-time tricks", single_model, of_training=True),
    Rule("F9", FOLLOWED, "Communication volume and time are measured for each algorithm", communication),
    Rule("F10", FOLLOWED, "Same architecture in baseline and candidate", same_architecture, ALWAYS, of_training=True),
)
