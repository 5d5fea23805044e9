"""Time-to-accuracy benchmarks whose verdicts can be checked and re-run.

In Python: `repro.open` a record, `repro.plan`, `repro.run` or `repro.gate` a suite (docs/python.md).
"""

import importlib
from pathlib import Path

__version__ = "1.0.0rc1"

# In a checkout (and an editable install) `reporters/`, `suites/` and `templates/` are next to this folder; a wheel
# carries them inside it. One line makes both look the same to the import system.
if not (Path(__file__).parent / "reporters").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

_PUBLIC = {
    "open": "repro.api.opened:open", "Run": "repro.api.opened:Run", "Comparison": "repro.api.comparison:Comparison",
    "plan": "repro.cli.workflows.starting:plan", "Planned": "repro.cli.workflows.starting:Planned",
    "run": "repro.cli.workflows.starting:run", "gate": "repro.cli.workflows.starting:gate",
    "ReproError": "repro.core.errors:ReproError",
}
# Name -> where it is defined; it is imported when it is first used. The types are in __init__.pyi.


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'repro' has no attribute {name!r}; public: {', '.join(sorted(_PUBLIC))}")
    module, _, attribute = _PUBLIC[name].partition(":")
    found = globals()[name] = getattr(importlib.import_module(module), attribute)
    return found


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
