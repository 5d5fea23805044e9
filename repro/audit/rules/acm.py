"""ACM's artifact badges, version 1.1: what a record can show of them. Badges are given by people; these are what they
would look for first."""

from __future__ import annotations

from repro.audit.rules.facts import Facts
from repro.audit.rules.rule import Judged, Rule, absent, count, many, named

SOURCE = "ACM Artifact Review and Badging 1.1"


def available(facts: Facts) -> Judged:
    """ACM1. The archive itself, a DOI, lies outside every record."""
    if facts.dirty:
        return "fail", f"the code had changes that commit {str(facts.commit)[:12]} does not hold, so no archive can"
    if facts.data is not None and (loose := [item.name for item in facts.data if item.source is None]):
        return absent(facts, f"data without a source: {named(loose)}")
    if facts.commit is None or not facts.data:
        lacking = ["the commit"] * (facts.commit is None) + ["the data"] * (not facts.data)
        return absent(facts, f"not identified: {' and '.join(lacking)}")
    return "pass", f"identified: commit {facts.commit[:12]}, {many(facts.data, 'data set')}, " \
                   f"{many(facts.software, 'library', 'libraries')}; whether an archive holds them no record " \
                   "says"


def functional(facts: Facts) -> Judged:
    """ACM2."""
    if facts.missing is None:
        return "cannot tell", "what a complete run of this would be is not said"
    if facts.missing:
        return "fail", f"not complete: {count(facts.missing, 'planned run')} without a result"
    if facts.parity == "failed":
        return "fail", "not consistent: the parity gate found engines that train differently"
    broken = [run.name for _, run in facts.runs if run.reached is None]
    if broken:
        return "fail", f"not exercisable as it stands: {many(broken, 'run')} crashed or left an invalid log: " \
                       f"{named(broken)}"
    if facts.parity is None:
        return absent(facts, f"{many(facts.runs, 'run')} complete, but no verification: there was no parity gate")
    gate = "passed" if facts.parity == "passed" else "not needed"
    return "pass", f"complete and exercised: {many(facts.runs, 'run')}; parity gate {gate}"


def reproduced(facts: Facts) -> Judged:
    """ACM3."""
    if facts.reproduced is None:
        return "cannot tell", "one record is one study; this badge takes another team's"
    if facts.reproduced:
        return "pass", "stated: another party obtained the results with these artifacts"
    return "fail", "stated: another party did not obtain the results"


RULES = (
    Rule("ACM1", f"{SOURCE}, Artifacts Available", "What would be archived is identified", available),
    Rule("ACM2", f"{SOURCE}, Functional", "Complete, consistent, exercised", functional),
    Rule("ACM3", f"{SOURCE}, Results Reproduced", "Obtained again by another team", reproduced),
)
