"""`repro.watch` in the Trainer of Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.trainer.states import TrainerFn

from repro import watch


class WatchCallback(Callback):
    """Reports a `Trainer`'s training: `Trainer(..., callbacks=[WatchCallback()])`.

    Start and stop are those of `fit()`, without Lightning's check of the validation before it. Every metric that was
    logged since the last validation goes under its own name; a `validate()` outside `fit()` is none of the training's.
    Where gradients are accumulated, a validation between two updates has the weights of the last one, and is left out.
    """

    def __init__(self) -> None:
        self._reported: dict[str, tuple[Any, int]] = {}
        """Metric -> its newest value, and the step of it."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Report the start; begin the trace that `repro gate` asks for, of the first optimizer."""
        if watch.is_traced():
            watch.trace(pl_module, trainer.optimizers[0])
        self._reported = {name: (value, -1) for name, (value, _) in self._reported.items()}
        if trainer.is_global_zero:
            watch.started()

    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
        """Report the optimizer's steps."""
        if trainer.is_global_zero:
            watch.step(trainer.global_step)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the qualities."""
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING or not trainer.is_global_zero:
            return
        step = trainer.global_step
        for name, value in trainer.callback_metrics.items():
            known, at = self._reported.get(name, (None, -1))
            # Lightning keeps what an earlier validation logged: the same object is no new quality.
            if value is not known:
                self._reported[name] = value, step
                # Without accumulation every batch is an update: a step that stands still is to be seen.
                if step != at or trainer.accumulate_grad_batches == 1:
                    watch.evaluated(value, name, step=step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the end."""
        if trainer.is_global_zero:
            watch.stopped()
