"""One case of every optimizer for the tests of engines, and the engines that carry it out."""

from __future__ import annotations

from repro.engines.deepspeed_zero import DeepSpeedZero
from repro.engines.torch_engines import Ddp, Fsdp
from repro.optimizers.muon import Muon
from repro.optimizers.rules import Adam, Lamb, Lars, Lion, RmsProp, ScheduleFreeAdamW, ScheduleFreeSgd, Shampoo, Soap
from repro.papers.adaptahead.adaptahead import AdaptAhead
from repro.seams.training import Engine, Optimizer

OPTIMIZERS: dict[str, Optimizer] = {
    "adam": Adam(lr=0.01, weight_decay=0.01),
    "rmsprop": RmsProp(lr=0.002, momentum=0.5),
    "adaptahead": AdaptAhead(lr=0.0005, weight_decay=0.01),
    "lars": Lars(lr=1, weight_decay=0.01),
    "lamb": Lamb(lr=0.01, weight_decay=0.1),
    "lion": Lion(lr=0.002, weight_decay=0.1),
    "muon": Muon(lr=0.02, adamw_lr=0.01, hidden=("4.weight",)),
    # Factors of at most 10 rows: those of a larger dimension have a null space of several dimensions, whose basis
    # rounding decides. The large epsilon: where gradients sum to 0 Adam would divide rounding by rounding.
    "soap": Soap(lr=0.002, largest_dimension=10, basis_every=3, eps=1e-2),
    "shampoo": Shampoo(lr=0.05, weight_decay=0.01),
    "schedule-free-sgd": ScheduleFreeSgd(lr=0.05, weight_decay=0.01),
    "schedule-free-adamw": ScheduleFreeAdamW(lr=0.01, weight_decay=0.1),
}
ZERO_0, ZERO_1, ZERO_2, ZERO_3 = (DeepSpeedZero(stage=stage) for stage in (0, 1, 2, 3))  # type: ignore[arg-type]
EVERYWHERE: tuple[Engine, ...] = (Ddp(), Fsdp(), ZERO_0, ZERO_1, ZERO_2, ZERO_3)
ENGINES: dict[str, tuple[Engine, ...]] = {
    **dict.fromkeys(("adam", "rmsprop", "adaptahead", "lion"), EVERYWHERE),
    **dict.fromkeys(("lars", "lamb", "muon", "schedule-free-sgd", "schedule-free-adamw"), EVERYWHERE[:3]),
    **dict.fromkeys(("soap", "shampoo"), (Ddp(), ZERO_0)),
}
"""Where an optimizer may run on two processes; a plan refuses the rest."""
