"""Differences of machine, code, plan or record between two starts of a run, each with its kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from repro.record.environment.environment import Environment
from repro.record.environment.placement import split
from repro.record.environment.plugin_code import PluginCode

DifferenceKind = Literal["code", "libraries", "hardware", "settings", "data", "plan", "record"]
FACTS: dict[str, DifferenceKind] = {
    "repro_version": "code", "python": "libraries", "system": "hardware", "cpu": "hardware", "cores": "hardware",
    "memory_bytes": "hardware", "device": "hardware", "devices": "hardware", "commit": "code", "dirty": "code",
    "governor": "hardware",
}
"""Fields that are the identity of a run, with packages, settings, limits and data, which are compared one by one."""
SAME_MEMORY = 0.01
OWN = "repro-harness"
ABSENT = "not installed"
SHOWN = 4
"""The number of packages that a text names."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference that forbids to resume a run unless `--force` is given."""

    kind: DifferenceKind
    text: str


def same_memory(one: int | None, other: int | None) -> bool:
    """Return whether two sizes may be of computers of one class, which differ by some pages."""
    return one == other or bool(one and other and abs(one - other) <= SAME_MEMORY * one)


def differences(then: Environment, now: Environment) -> list[Difference]:
    """List differences between the identities of two environments; where they were placed is none."""
    code = (Difference("code", text) for text in other_code(then.plugins, now.plugins))
    return [*_facts(then, now), *code, *_tables(then, now), *_packages(then, now), *_data(then, now)]


def _facts(then: Environment, now: Environment) -> Iterator[Difference]:
    for name, kind in FACTS.items():
        old, new = getattr(then, name), getattr(now, name)
        if name == "memory_bytes":
            if same_memory(old, new):
                continue
            old, new = (size and f"{size / (1 << 30):.3g} GiB" for size in (old, new))
        if old != new:
            yield Difference(kind, f"{name.replace('_', ' ')} {_shown(old)}, now {_shown(new)}")
    if then.diff_sha256 and now.diff_sha256 and then.diff_sha256 != now.diff_sha256:
        yield Difference("code", f"uncommitted changes {then.diff_sha256[:12]}, now {now.diff_sha256[:12]}")


def other_code(then: Iterable[PluginCode], now: Iterable[PluginCode]) -> Iterator[str]:
    """Name each plug-in whose code has changed, with both versions of it."""
    olds, news = ({item.plugin: item for item in side} for side in (then, now))
    for name in sorted({*olds, *news}):
        if not same_code(old := olds.get(name), new := news.get(name)):
            yield f"plug-in {name} {old.text() if old else 'unknown'}, now {new.text() if new else 'unknown'}"


def changed_plugins(one: Environment, other: Environment) -> list[str]:
    """Name the plug-ins whose source both environments know and which differ, with both versions."""
    news = {item.plugin: item for item in other.plugins}
    return [f"plug-in {old.plugin} ({old.text()} against {news[old.plugin].text()})" for old in one.plugins
            if old.plugin in news and not same_code(old, news[old.plugin])]


def changed_data(one: Environment, other: Environment) -> list[str]:
    """Name the data sets of workloads in both environments whose content differs."""
    news = {item.workload: item for item in other.data}
    return [f"data of {old.workload} ({old.sha256[:12]} against {news[old.workload].sha256[:12]})" for old in one.data
            if old.workload in news and news[old.workload].sha256 != old.sha256]


def same_code(one: PluginCode | None, other: PluginCode | None) -> bool:
    """Return True if two versions of a plug-in have the same source; a commit that leaves it alone changes nothing."""
    return one is other or (one is not None and other is not None
                            and (one.distribution, one.version, one.sha256)
                            == (other.distribution, other.version, other.sha256))


def _tables(then: Environment, now: Environment) -> Iterator[Difference]:
    # An early record has variables and limits of its placement among the others.
    own = partial(split, places=False)
    tables: list[tuple[DifferenceKind, str, dict[str, str], dict[str, str]]] = [
        ("libraries", "library", then.libraries, now.libraries),
        ("settings", "setting", own(then.settings), own(now.settings)),
        ("hardware", "limit", own(then.limits), own(now.limits))]
    for kind, what, olds, news in tables:
        for name in sorted({*olds, *news}):
            if olds.get(name) != news.get(name):
                yield Difference(kind, f"{what} {name} {_shown(olds.get(name))}, now {_shown(news.get(name))}")


def _packages(then: Environment, now: Environment) -> Iterator[Difference]:
    """Yield one difference for all packages installed, removed or replaced, if both environments list packages.

    Libraries have separate differences. The harness itself is compared by version and commit: whether it is found
    as a package depends on the working directory.
    """
    others = {re.sub(r"[-_.]+", "-", name).lower() for name in (*then.libraries, *now.libraries, OWN)}
    olds, news = ({re.sub(r"[-_.]+", "-", name).lower(): number for name, _, number in
                   (text.partition("==") for text in item.packages)} for item in (then, now))
    if not olds or not news:
        return
    found = [f"{name} {olds.get(name, ABSENT)}, now {news.get(name, ABSENT)}"
             for name in sorted({*olds, *news} - others) if olds.get(name) != news.get(name)]
    if found:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        yield Difference("libraries", f"package{'s' if len(found) > 1 else ''} {'; '.join(found[:SHOWN])}{more}")


def _data(then: Environment, now: Environment) -> Iterator[Difference]:
    hashes = {item.workload: item.sha256 for item in now.data}
    for item in then.data:
        if hashes.get(item.workload) != item.sha256:
            yield Difference("data", f"data of {item.workload} {item.sha256[:12]}, "
                                     f"now {_shown(hashes.get(item.workload))[:12]}")


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)
