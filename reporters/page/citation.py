"""The citation: the values of CITATION.cff, with the version that made the run and the suite digest."""

from __future__ import annotations

import re

import repro
from repro.record.folder.store import Record

MESSAGE = ("If you use this software in a publication, please cite it with the version and the suite digest of your "
           "runs.")
TITLE = "repro-harness: time-to-accuracy benchmarks with verdicts that can be checked and re-run"
AUTHOR = "The repro-harness contributors"
LICENSE = "Apache-2.0"
RELEASED = "2026-11-20"
"""Date of this version; a record of another version is cited without a date. A test compares all with CITATION.cff."""


def citation(record: Record) -> str:
    """Return the CITATION.cff of the version that made the run."""
    version = record.environment.repro_version
    date = f"date-released: {RELEASED}\n" if version == repro.__version__ else ""
    return (f'cff-version: 1.2.0\nmessage: "{MESSAGE}"\ntitle: "{TITLE}"\ntype: software\nauthors:\n'
            f'  - name: "{AUTHOR}"\nversion: {version}\n{date}license: {LICENSE}\n')


def bibtex(record: Record) -> str:
    """Return the BibTeX entry.

    It is `@misc`, which every style knows. The note has the digits of the digest that the reports show, because no line
    of a column holds all 64; the field `digest`, which styles ignore, has all. Keys of two suites
    differ: a paper may cite both.
    """
    version = record.environment.repro_version
    year = f"  year = {{{RELEASED[:4]}}},\n" if version == repro.__version__ else ""
    key = re.sub("[^0-9A-Za-z.]", "", version)
    return (f"@misc{{repro-harness-{key}-{record.plan.digest[:8]},\n"
            f"  title = {{{{{TITLE}}}}},\n  author = {{{{{AUTHOR}}}}},\n{year}"
            f"  version = {{{version}}},\n  license = {{{LICENSE}}},\n"
            f"  note = {{Suite digest {record.plan.digest[:16]}, method {record.plan.method}}},\n"
            f"  digest = {{{record.plan.digest}}},\n}}\n")
