"""The data sets of the installed workloads."""

from __future__ import annotations

from repro.core import registry
from repro.core.errors import ReproError, UnknownName
from repro.workloads.data.form import DataForm


def forms() -> dict[str, DataForm]:
    """Return name -> form of every data set that a workload reads; a workload that cannot be imported has none."""
    found: dict[str, DataForm] = {}
    for name in registry.names("workload"):
        try:
            form = getattr(registry.load("workload", name), "form", None)
        except ReproError:
            continue
        if isinstance(form, DataForm):
            found[form.name] = form
    return found


def form_of(name: str) -> DataForm:
    """Return the form of a data set.

    Raises:
        UnknownName: no workload reads one of this name.
    """
    known = forms()
    if name not in known:
        raise UnknownName("data set", name, known)
    return known[name]
