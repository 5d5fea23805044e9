"""ACM's artifact badges, version 1.1: as far as a record can show them. People award badges; these rules
check what they would check first."""

from __future__ import annotations

from repro.audit.rules.facts import Facts
from repro.audit.rules.rule import Judged, Rule, count, join, lacks, many, untold

SOURCE = "ACM Artifact Review and Badging 1.1"


def available(facts: Facts) -> Judged:
    """ACM1. The archive itself, a DOI, is outside every record."""
    if facts.dirty:
        return "fail", f"the code had uncommitted changes to {str(facts.commit)[:12]}, so no archive can hold them"
    if facts.data is not None and (loose := [item.name for item in facts.data if item.source is None]):
        return lacks(facts, f"data without a source: {join(loose)}")
    without_data = not facts.data and not facts.measurements
    if facts.commit is None or without_data:
        lacking = ["the commit"] * (facts.commit is None) + ["the data"] * without_data
        judge = untold if lacking == ["the data"] else lacks
        return judge(facts, f"not identified: {' and '.join(lacking)}")
    return "pass", f"identified: commit {facts.commit[:12]}, {many(facts.data or (), 'data set')}, " \
                   f"{many(facts.software, 'library', 'libraries')}; whether an archive holds them is not in a " \
                   "record"


def functional(facts: Facts) -> Judged:
    """ACM2."""
    if facts.missing is None:
        return "cannot tell", "the source does not state the planned runs"
    if facts.missing:
        return "fail", f"not complete: {count(facts.missing, 'planned run')} without a result"
    if facts.parity == "failed":
        return "fail", "not consistent: the parity gate found engines that train differently"
    broken = [run.name for _, run in facts.runs if run.reached is None]
    if broken:
        return "fail", f"not exercisable: {many(broken, 'run')} crashed or left an invalid log: " \
                       f"{join(broken)}"
    if facts.ungated:
        left_out = join(f"{label}: {reason}" for label, reason in facts.ungated.items())
        return lacks(facts, f"{many(facts.runs, 'run')} complete, but the parity gate left out "
                            f"{count(len(facts.ungated), 'cell')}: {left_out}")
    if facts.parity is None:
        return lacks(facts, f"{many(facts.runs, 'run')} complete, but no verification: there was no parity gate")
    gate = "passed" if facts.parity == "passed" else "not needed"
    return "pass", f"complete and exercised: {many(facts.runs, 'run')}; parity gate {gate}"


def reproduced(facts: Facts) -> Judged:
    """ACM3."""
    if facts.reproduced is None:
        return "cannot tell", "one record is one study; this badge requires one by another team"
    if facts.reproduced:
        return "pass", "stated: another party obtained the results with these artifacts"
    return "fail", "stated: another party did not obtain the results"


RULES = (
    Rule("ACM1", f"{SOURCE}, Artifacts Available", "What would be archived is identified", available),
    Rule("ACM2", f"{SOURCE}, Functional", "Complete, consistent, exercised", functional),
    Rule("ACM3", f"{SOURCE}, Results Reproduced", "Obtained again by another team", reproduced),
)
