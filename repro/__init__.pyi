from repro.api.comparison import Comparison as Comparison
from repro.api.opened import Run as Run
from repro.api.opened import open as open
from repro.cli.workflows.starting import Planned as Planned
from repro.cli.workflows.starting import gate as gate
from repro.cli.workflows.starting import plan as plan
from repro.cli.workflows.starting import run as run
from repro.core.errors import ReproError as ReproError

__version__: str
