"""Build the compiled extensions of engines before a run, in a separate process, so that no trial waits for them."""

from __future__ import annotations

import subprocess
import sys

from repro.core.errors import UsageError
from repro.seams.training import Engine
from repro.suite.planning.plan import Plan

LIMIT_SECONDS = 900.0


def build_extensions(plan: Plan) -> None:
    """Build what the engines of the plan need.

    Raises:
        UsageError: it cannot be built.
    """
    needed = {engine.build_module: (choices.engine.kind, built) for choices in plan.trainings()
              if (built := (engine := choices.engine.get(Engine)).builds())}
    for module, (name, built) in needed.items():
        problem = _run(module)
        if problem:
            raise UsageError(f"engine {name}: {built} cannot be built: {problem}; `{sys.executable} -m {module}` "
                             "prints everything")


def _run(module: str) -> str:
    """Run the module; return the last line that names an error, "" if there was none."""
    try:
        ended = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=False,
                               timeout=LIMIT_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_SECONDS:g} s"
    if ended.returncode == 0:
        return ""
    lines = [line.strip() for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line.lower()), lines[-1] if lines else "no output")[:200]
