"""The data sets of the installed workloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from repro.core import registry
from repro.core.errors import ReproError, UnknownName
from repro.workloads.data.form import DataForm, Facts


def forms() -> dict[str, DataForm]:
    """Return name -> form of every data set that a workload reads; a workload that cannot be imported has none."""
    return {workload.form.name: workload.form for workload in _readers()}


def form_of(name: str) -> DataForm:
    """Return the form of a data set.

    Raises:
        UnknownName: no workload reads one of this name.
    """
    known = forms()
    if name not in known:
        raise UnknownName("data set", name, known)
    return known[name]


def problem_of(form: DataForm, facts: Facts) -> str:
    """Return why the workload that reads a data set could use none with these facts; empty if it can."""
    found = (workload.problem_of(facts) for workload in _readers() if workload.form.name == form.name)
    return next(filter(None, found), "")


def _readers() -> Iterator[Any]:
    """Yield every `PreparedWorkload`, whose module needs this one, that can be imported."""
    for name in registry.names("workload"):
        try:
            workload = registry.load("workload", name)
        except ReproError:
            continue
        if isinstance(getattr(workload, "form", None), DataForm):
            yield workload
