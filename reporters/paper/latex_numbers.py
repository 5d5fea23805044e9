"""The numbers of a record as LaTeX macros, so that the text of a paper never has a figure typed by hand."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from repro.compare import METRICS, Comparison
from repro.core.numbers import DIGITS, ratio_texts
from repro.record.folder.store import Record
from repro.tables.layout import name, rounded
from repro.tables.values import origins_of, plain
from repro.tables.verdicts import ratio_and_span

from .brief import Shown, shown_of
from .latex_text import escaped

LONGEST = 120
"""Most letters of the part of a name that a label gives."""
MISSING = r"\reproMissing"
"""What a macro without a value prints: bold question marks, as an unknown reference does."""


@dataclass(frozen=True, slots=True)
class Macro:
    """One number: its name without the backslash, its value in LaTeX, and the sentence it belongs to."""

    name: str
    value: str
    meaning: str


def letters(text: str) -> str:
    """Return `text` as a name of letters: words begin with a capital, digits are spelled, the rest is left out."""
    flat = unicodedata.normalize("NFKD", text)
    if re.search(r"\d\.\d", text):
        flat = flat.replace(".", " Point ")
    spelled = re.sub(r"[0-9]", lambda found: f" {DIGITS[int(found[0])]} ", flat)
    return "".join(word[0].upper() + word[1:] for word in re.findall("[A-Za-z]+", spelled))


def keys(named: list[tuple[str, str]]) -> list[str]:
    """Return a unique part of a name for each (label, identity).

    Letters from the hash of its identity distinguish a label that is shared, empty or too long. They do not depend on
    the other labels of the record.
    """
    plain_keys = [letters(label) for label, _ in named]
    often = Counter(plain_keys)
    return [key if often[key] == 1 and 0 < len(key) <= LONGEST and key != "Primary" else
            f"{key[:LONGEST // 2]}Id{_hashed(identity)}"
            for key, (_, identity) in zip(plain_keys, named, strict=True)]


def _hashed(identity: str) -> str:
    return "".join(chr(ord("a") + int(digit, 16)) for digit in hashlib.sha256(identity.encode()).hexdigest()[:10])


def macros(record: Record, part: Shown) -> list[Macro]:
    """Return the macros: of the record, the declared contrast, every contrast, main effect and cell that is shown."""
    whole = part if part.whole else shown_of(record)  # names do not depend on what is shown
    return [*_of_record(record), *_of_contrasts(whole, part), *_of_cells(record, part)]


def _of_record(record: Record) -> Iterator[Macro]:
    suite = record.plan.suite
    for key, value, meaning in (
        ("Suite", name(suite.suite), "name of the suite"),
        ("Digest", record.plan.digest[:16], "first 16 digits of the digest of the suite"),
        ("Method", record.plan.method, "version of the rules of verdicts"),
        ("Version", record.environment.repro_version, "version of repro that made the run"),
        ("Origin", " and ".join(origins_of(record, record.plan.cells)), "origin of the figures"),
        ("Trials", str(len(record.results)), "trials that have run"),
        ("Planned", str(record.planned), "trials that are planned"),
        ("Seeds", str(suite.seeds), "planned seeds of each cell; the most in a sequential design"),
    ):
        yield Macro(f"repro{key}", escaped(value), meaning)


def _of_contrasts(whole: Shown, part: Shown) -> Iterator[Macro]:
    named = [(f"{item.candidate_label} versus {item.baseline_label}", f"{item.candidate} {item.baseline}")
             for item in whole.comparisons]
    named += [(f"effect {item.factor} {item.level} versus {item.reference}", f"{item.factor} {item.level} "
               f"{item.reference}") for item in whole.effects]
    found = keys(named)
    for item, key in zip(whole.comparisons, found, strict=False):
        if not part.whole and not item.primary:
            continue
        sentence = _sentence(item, f"{item.candidate_label} against {item.baseline_label}")
        if item.primary:
            yield from _of_verdict(item, "Primary", f"declared contrast, {sentence}")
        yield from _of_verdict(item, key, sentence)
    for effect, key in zip(part.effects, found[len(whole.comparisons):] if part.whole else (), strict=True):
        yield from _of_verdict(effect.pooled, key, _sentence(
            effect.pooled, f"main effect of {effect.factor}: {effect.level} against {effect.reference}"))


def _sentence(item: Comparison, subject: str) -> str:
    ratio, _ = ratio_and_span(item.ratio, None)
    estimate = f"{ratio} x {METRICS[item.metric].times}" if ratio else "no ratio"
    return f"{subject}: {item.spoken}, {estimate}"


def _of_verdict(item: Comparison, key: str, sentence: str) -> Iterator[Macro]:
    bounds, corrected = item.interval, item.p_adjusted is not None
    known = [] if item.ratio is None else [item.ratio, *((bounds.low, bounds.high) if bounds else ())]
    ratio, low, high = (*map(_latex, ratio_texts(known)), *[MISSING] * 3)[:3]
    alone = ", at this look alone" if item.look else ""
    for field, value, meaning in (
        ("Verdict", escaped(item.spoken), "verdict"),
        ("Ratio", ratio, "ratio, candidate / baseline"),
        ("Low", low, "lower end of the interval of the ratio"),
        ("High", high, "upper end of the interval of the ratio"),
        ("Level", f"{100 * bounds.level:.3g}" if bounds else MISSING, f"level of the interval in per cent{alone}"),
        ("P", _number(item.p_adjusted if corrected else item.p, 2),
         "p, corrected by Holm" if corrected else "p, not corrected"),
        ("Pairs", str(item.n), "n: pairs" if item.paired else "n: trials per side, unpaired"),
    ):
        yield Macro(f"repro{field}{key}", value, f"{meaning}; {sentence}")


def _of_cells(record: Record, part: Shown) -> Iterator[Macro]:
    metric = record.plan.suite.metric
    found = part.found.summaries
    unit = f" in {METRICS[metric].unit}" if METRICS[metric].unit else ""
    for item, key in zip(found, keys([(item.label, item.cell_id) for item in found]), strict=True):
        if not part.has(item.cell_id):
            continue
        bounds = item.interval
        for field, value, meaning in (
            ("Median", _number(item.median), f"median {METRICS[metric].noun}{unit}"),
            ("From", _number(bounds.low if bounds else None), "lower end of the interval of the median"),
            ("To", _number(bounds.high if bounds else None), "upper end of the interval of the median"),
            ("Runs", str(item.n), "n: trials"),
            ("Successes", str(item.ok), "trials that ended well"),
        ):
            yield Macro(f"repro{field}{key}", value, f"{meaning}; {item.label}")


def _number(value: float | None, digits: int = 3) -> str:
    return MISSING if value is None else _latex(rounded(value, digits))


def _latex(text: str) -> str:
    if "e" in text:
        mantissa, _, exponent = text.partition("e")
        return f"\\ensuremath{{{mantissa}\\times 10^{{{int(exponent)}}}}}"
    return text.replace(",", "{,}")


def numbers_file(found: list[Macro], prefix: str) -> str:
    """Return `numbers.tex`; each macro follows a comment with the sentence it belongs to.

    Args:
        prefix: letters after `repro` in every name.
    """
    start = f"\\repro{prefix}"
    lines = ["% Written by repro. \\input{numbers} in the preamble; then, in the text: a ratio of "
             f"{start}RatioPrimary{{}}",
             f"% ({start}LowPrimary{{}} to {start}HighPrimary{{}}). A number that the record has not prints as ??.",
             r"\providecommand{\reproMissing}{\textbf{??}}"]
    for item in found:
        lines += [f"% {' '.join(plain(item.meaning).split())[:500]}",
                  f"\\newcommand{{{start}{item.name.removeprefix('repro')}}}{{{item.value}}}"]
    return "\n".join(lines) + "\n"
