"""The rows of `repro list`: bundled suites, and the plug-ins of every seam."""

from __future__ import annotations

from repro.core import registry
from repro.core.errors import ReproError, UnknownName
from repro.suite.file import bundled, read_suite

KINDS = {
    "suites": "", "workloads": "workload", "engines": "engine", "comm": "comm", "precisions": "precision",
    "optimizers": "optimizer", "preconditioners": "preconditioner", "measurements": "measurement",
    "launchers": "launcher", "reporters": "reporter",
}


def rows(kind: str) -> list[dict[str, str]]:
    """Return the name and a one-line title of everything of a kind.

    Raises:
        UnknownName: there is no such kind.
    """
    if kind not in KINDS:
        raise UnknownName("kind", kind, KINDS)
    if kind == "suites":
        return [_suite_row(name) for name in bundled()]
    return [{"name": name, "title": _title(KINDS[kind], name)} for name in registry.names(KINDS[kind])]


def _suite_row(name: str) -> dict[str, str]:
    suite = read_suite(name).suite
    return {"name": name, "version": suite.version, "title": suite.title, "expected": suite.expected}


def _title(seam: str, name: str) -> str:
    try:
        cls = registry.load(seam, name)
    except ReproError as error:
        return f"(not usable: {error})"
    title = getattr(cls, "title", "")
    return str(title or (cls.__doc__ or "").strip().splitlines()[0])
