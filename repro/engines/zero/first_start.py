"""Modules that DeepSpeed imports at the first start of an engine: loaded once in the fork server, not in every rank.

Muon's file compiles a function when it is imported, for which torch loads its compiler: a second of every rank's start.
"""

from __future__ import annotations

import importlib
from contextlib import suppress

LATE = (
    "deepspeed.module_inject.auto_ep_config", "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.ops.op_builder.all_ops", "deepspeed.runtime.zero.muon.muon_optimizer",
)
"""Some versions of DeepSpeed lack some of them."""

for _name in LATE:
    with suppress(ImportError):
        importlib.import_module(_name)
