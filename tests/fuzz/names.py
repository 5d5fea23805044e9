"""Names of the targets, without loading what they test: the process that only prints stays small and quick."""

NAMES = (
    "suite file",
    "override",
    "pattern, condition",
    "audit mapping",
    "MLPerf log",
    "system description",
    "DAWNBench curve",
    "DAWNBench description",
    "import",
    "log of a speed-run",
    "import of speed-runs",
    "run folder: verify, compare, audit, resume",
    "run folder: tables",
    "run folder: page, figures",
    "run folders: merged",
    "bundle",
)
