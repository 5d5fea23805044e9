"""Where agents join a run: REPRO_LISTEN on node 0; MASTER_ADDR on the others."""

from __future__ import annotations

import os

from repro.core.errors import UsageError

LISTEN, MASTER = "REPRO_LISTEN", "MASTER_ADDR"
PORT = 29410


def listen() -> tuple[str, int]:
    """Return host ("" for all addresses) and port that agents join.

    Raises:
        UsageError: `REPRO_LISTEN` has another form.
    """
    host, _, port = os.environ.get(LISTEN, f":{PORT}").rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"{LISTEN}={os.environ[LISTEN]}: must be HOST:PORT or :PORT")
    return host, int(port)


def master() -> str | None:
    """Return HOST:PORT of node 0 as torchrun, MLPerf's scripts and `mpirun -x` name it; None: they do not."""
    host = os.environ.get(MASTER, "").strip()
    return f"{host}:{listen()[1] or PORT}" if host else None
