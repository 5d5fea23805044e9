"""Time-to-accuracy benchmarks whose verdicts can be checked and re-run."""

from pathlib import Path

__version__ = "0.2.0"

# In a checkout (and an editable install) `reporters/`, `suites/` and `templates/` are next to this folder; a wheel
# carries them inside it. One line makes both look the same to the import system.
if not (Path(__file__).parent / "reporters").is_dir():
    __path__.append(str(Path(__file__).parent.parent))
