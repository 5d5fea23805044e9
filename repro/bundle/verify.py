"""Check that a record is complete and unmodified: every hash, every file's schema, every figure derived from its log.

These checks show that the files have not changed since the run ended and that the figures follow from the logs. They
cannot show that a log was not invented together with its index. Only `repro reproduce` can.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from repro.bundle.source import is_foreign, open_record
from repro.bundle.verify_files import (
    CRATE,
    Problem,
    Verification,
    check_index,
    checked,
    checked_model,
    unchecked_names,
    unplanned_folders,
    without_place,
)
from repro.bundle.verify_lanes import check_lanes, strange_solo
from repro.bundle.verify_ledger import LEDGER, check_ledger, check_looks, unfinished, unknown_nodes, unlisted_logs
from repro.bundle.verify_plan import check_plan, check_suite_file, made_by, other_machine
from repro.bundle.verify_trials import check_gated, check_pairing, verified_result
from repro.bundle.verify_tuning import check_choice, has_tuning, wrong_bars
from repro.core import door
from repro.core.errors import OutputError, visible
from repro.core.frozen import Lenient
from repro.core.source_code import PLACE_DIGITS, stored_source
from repro.record.environment.environment import Environment
from repro.record.environment.gpus import stand_ins
from repro.record.folder import index as record_index
from repro.record.folder import registration
from repro.record.folder.ledger import Attempt, Incident, end_of, read_attempts, read_lines
from repro.record.folder.store import SOLO, TUNING, Gate, RunFolder, lists_trials, read_nodes, read_record
from repro.record.folder.stored_code import classes_from_files
from repro.record.result.results import Result
from repro.suite.planning.consent import carried_by
from repro.suite.planning.plan import Plan
from repro.suite.recorded import reading


def verify(path: Path, signer: Path | None = None, register: Path | None = None) -> Verification:
    """Check the run folder or bundle at `path`.

    Args:
        signer: a public SSH key; its owner must have signed the bundle, or the plan before the first trial.
        register: a file that others kept; the plan must have been registered in it before the first trial.

    Raises:
        OutputError: there is neither, or the bundle cannot be unpacked safely.
        UsageError: `signer` is no public key.
    """
    with open_record(path) as root:
        found = verify_opened(root, path)
        if signer is not None:
            _check_signatures(root, path, signer, found)
        if register is not None and not registration.is_listed(root, register):
            found.add(registration.NAME, f"is not in {register}", "signature")
        return found


def unsound(place: Path, folder: Path) -> str:
    """Return what `verify` finds first in a record of others, which is a copy in `folder`, and its last line; "" if it
    is unmodified, one's own, or from MLflow, which keeps no index. A figure of such a record need not follow from its
    log."""
    found = verify_opened(folder, place) if place.exists() and is_foreign(place) else None
    if found is None or found.unmodified:
        return ""
    first = visible(found.problems[0].text())
    return f"{found.text().splitlines()[-1]} (first: {first}; repro verify {quote(str(place))})"


def _check_signatures(root: Path, path: Path, signer: Path, found: Verification) -> None:
    """Check what of a record is signed; something has to be."""
    own, below = path.with_name(path.name + registration.SUFFIX), root / (registration.NAME + registration.SUFFIX)
    signed = [*([(path, own, registration.BUNDLES)] if path.is_file() and own.is_file() else []),
              *([(root / registration.NAME, below, registration.PLANS)] if below.is_file() else [])]
    for what, signature, purpose in signed:
        if problem := registration.check_signature(what, signature, signer, purpose):
            found.add(signature.name, problem, "signature")
        else:
            found.count(f"signatures by that key of the {purpose.partition('@')[0]}")
    if not signed:
        found.add(path.name, "neither the bundle nor its plan is signed", "signature")


def verify_opened(root: Path, path: Path) -> Verification:
    """Check the run folder `root`, which is `path` or was unpacked from the bundle `path`.

    Raises:
        OutputError: it is no run folder.
    """
    found = Verification(str(path))
    if not (root / "plan.json").is_file() and not (root / record_index.NAME).is_file():
        hint = f"; its tuning has not ended, but {path}/{TUNING} can be verified" if (
            root / TUNING / "plan.json").is_file() else ""
        raise OutputError(f"{path}: neither a run folder nor a bundle (it holds no plan.json){hint}")
    for place, reason in door.intruders(root):  # also in what is no part of the record: resuming would use it
        found.add(place.relative_to(root).as_posix(), reason, "schema")
    if found.problems:
        return found  # nothing is read over a link
    check_index(root, found, packed=not path.is_dir() and (root / CRATE).is_file())  # else somebody zipped a run folder
    plan = _check_record(RunFolder(root), found)
    if plan is not None and plan.kind == "tuning":
        found.extend(wrong_bars(root))
    elif plan is not None and (has_tuning(root) or plan.suite.tuned is not None):
        if has_tuning(root):
            _check_below(RunFolder(root).tuning, TUNING, found)
        check_choice(root, plan, found)
    if plan is not None and (plan.solo or (root / SOLO).exists()):
        found.extend(strange_solo(plan, _check_below(RunFolder(root).solo, SOLO, found)))
    return found


def _check_below(folder: RunFolder, name: str, found: Verification) -> Plan | None:
    """Check a record inside a record, whose index has its files; return its plan."""
    below = Verification(f"{found.source}/{name}", found.identity)
    plan = _check_record(folder, below)
    for what, count in below.checked.items():
        found.checked[what] = found.checked.get(what, 0) + count
    found.extend(Problem(f"{name}/{item.place}", item.what, item.kind) for item in below.problems)
    found.notes.extend(f"{name}: {text}" for text in below.notes)
    found.missing += [f"{name}/{item}" for item in below.missing]
    return plan


def _check_record(folder: RunFolder, found: Verification) -> Plan | None:
    """Check every file of the record, and what the files say of one another; return its plan if it can be read."""
    plan = checked_model(folder.plan, Plan, folder.root, found)
    begun = folder.environment.exists() or folder.has_trials  # a pool may end before any of its blocks does
    environment = checked_model(folder.environment, Environment, folder.root, found) if begun else None
    gate, crate = folder.parity_verdict, folder.root / CRATE
    passed = checked_model(gate, Gate, folder.root, found) if gate.exists() else None
    if crate.exists():
        checked_model(crate, Lenient, folder.root, found)  # any JSON object
    source = folder.launchers if folder.launchers.exists() else folder.nodes
    history = (checked(source, lambda: read_nodes(folder), folder.root, found) if source.exists() else None) or ()
    attempts = checked(folder.ledger, lambda: read_attempts(folder.ledger), folder.root, found)
    if attempts and not gate.exists():
        found.add(gate.name, "is missing, but the parity gate writes it before the first trial", "missing")
    if folder.incidents.exists():
        checked(folder.incidents, lambda: read_lines(folder.incidents, Incident), folder.root, found)
    if plan is None:
        return None
    code = made_by(environment)
    check_plan(plan, code, found)
    check_code(folder, plan, environment, found)
    check_suite_file(plan, folder.suite, found)
    if environment is not None:
        found.add_each("plan.json", other_machine(plan, environment), "plan")
    if lists_trials(plan):  # check_plan has reported it otherwise; which trials are planned is unknown
        with reading(plan.plugins):
            _check_registration(folder, plan, attempts, found)
            devices = _check_trials(folder, plan, attempts, passed, code, found)
        if attempts is not None:
            found.add_each(LEDGER, unknown_nodes(attempts, history), "plan")
        places = [environment, *(item.environment for moment in history for item in moment.nodes)]
        if plan.uses_gpus:
            find_emulated([name for place in places if place for name in place.devices], devices, found)
    return plan


def find_emulated(listed: Sequence[str], named: Sequence[str], found: Verification) -> None:
    """Find devices that stand for GPUs.

    Args:
        listed: devices of all nodes, by the record of the machine.
        named: those of the trials, by their ranks.
    """
    found.emulated = stand_ins(listed) or stand_ins(named)
    if found.emulated and not stand_ins(listed):
        found.add("environment.json", f"lists no device that stands for a GPU, but trials ran on {found.emulated[0]}",
                  "plan")


def _check_registration(folder: RunFolder, plan: Plan, attempts: list[Attempt] | None, found: Verification) -> None:
    """Check that a registration, if there is one, names the trials of the plan and was made before they began."""
    found.registered = (folder.root / registration.NAME).exists()
    if not found.registered:
        return
    started: list[float] = []
    with suppress(OutputError, OSError, RecursionError):  # which was reported
        if not any(item.kind == "clock" for item in read_lines(folder.incidents, Incident)):
            started = [item.started_ms for item in attempts or ()]
    try:
        problem = registration.contradiction(folder.root, plan, started)
    except OutputError as error:
        found.add(registration.NAME, without_place(registration.NAME, folder.root, error), "schema")
        return
    if problem:
        found.add(registration.NAME, problem, "plan")


def _check_trials(
    folder: RunFolder, plan: Plan, attempts: list[Attempt] | None, gate: Gate | None, code: str, found: Verification
) -> list[str]:
    """Check every file of every trial against the plan, the ledger and the other trials; return their devices."""
    results = [item for trial in plan.trials() if (item := verified_result(folder, trial, code, found)) is not None]
    found.extend(unplanned_folders(folder, plan))
    if attempts is not None:
        check_ledger(folder, plan, results, attempts, found)
        check_lanes(folder, plan, results, attempts, found)
        for trial in plan.trials():
            found.extend(unlisted_logs(folder, trial, attempts))
    check_pairing(plan, results, found)
    check_gated(gate, plan, results, found)
    looks = check_looks(folder, plan, results, found)
    _check_complete(folder, plan, results, attempts or [], found, end_of(looks))
    if names := unchecked_names(folder.root):
        found.notes.append(f"not part of the record, not checked: {', '.join(ascii(name)[1:-1] for name in names[:8])}"
                           f"{' ...' if len(names) > 8 else ''}")
    return [item.model.device for item in results if item.model]


def _check_complete(
    folder: RunFolder, plan: Plan, results: list[Result], attempts: list[Attempt], found: Verification,
    end: int | None,
) -> None:
    """Note trials that have no result yet or have to run again; a run whose trials have all ended must have an index.

    Args:
        end: pairs after which a sequential run ended; later trials are not missing.
    """
    done, planned = {item.trial_id for item in results}, _due(folder, plan, end)
    found.missing += [name for name in planned if name not in done]
    if found.missing:
        found.notes.append(f"{len(found.missing)} of {len(planned)} planned trials have no readable result")
    elif again := unfinished(plan, results, attempts):
        found.missing += again
        found.notes.append(f"{len(again)} of {len(plan.order)} trials failed and were due to run again when the run "
                           "ended")
    elif found.identity is None and not (folder.root / record_index.NAME).exists():
        command = "reproduce SOURCE" if plan.kind == "reproduction" else "run"
        found.add(record_index.NAME, "is missing although every trial has ended; if the run was killed just before it "
                  f"was written, `repro {command} --resume` writes it", "missing")


def _due(folder: RunFolder, plan: Plan, end: int | None) -> list[str]:
    """Return the trials that a record must have: of a sequential run those up to its end, or to the look at which its
    time was spent."""
    if plan.design.looks:
        with suppress(OutputError):
            return [trial.trial_id for trial in read_record(folder.root).due()]
    return [trial.trial_id for trial in plan.trials() if end is None or trial.repeat < end]


def check_code(folder: RunFolder, plan: Plan, environment: Environment | None, found: Verification) -> None:
    """Check every source against its hash in the plan, and the plan against the environment; nothing is executed."""
    chosen = classes_from_files(plan)
    named = {item.plugin: item.sha256 for item in environment.plugins} if environment else {}
    sources = [(choice.code, choice.kind.partition(":")[0]) for choice in chosen]
    programs = {item.sha256 for item in carried_by(plan.cells)} - {choice.code for choice in chosen}
    for sha256, name in (*sources, *((sha256, "") for sha256 in sorted(programs))):
        place = f"code/{sha256[:PLACE_DIGITS]}"
        try:
            stored_source(folder.code, sha256, name)
            found.count(f"sources of {'classes' if name else 'programs'} by their hash")
        except OutputError as error:
            found.add(place, without_place(place, folder.root, error), "code")
    for choice in chosen:
        said = named.get(f"{choice.seam} {choice.kind}", choice.code)
        if said != choice.code:
            found.add("environment.json", f"{choice.seam} {choice.kind} ran with source {said[:16]}, the plan names "
                      f"{choice.code[:16]}", "code")
    known = {item.place.split("/")[1] for item in carried_by(plan.cells)}
    for name in sorted(path.name for path in folder.code.glob("*")):
        if name not in known:
            found.add(f"code/{ascii(name)[1:-1][:120]}", "is not the source of anything in the plan", "code")
