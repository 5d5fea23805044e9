"""`repro.watch` in the Trainer of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from repro import watch


class WatchCallback(TrainerCallback):
    """Reports a `Trainer`'s training: `Trainer(..., callbacks=[WatchCallback()])`.

    Start and stop are those of `train()`. Every number of an evaluation goes under its own name (`eval_loss`, ...); an
    `evaluate()` outside `train()` is none of the training's.
    """

    def __init__(self) -> None:
        self._training = False

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None,
                       **others: Any) -> None:
        """Report the start; begin the trace that `repro gate` asks for."""
        watch.trace(model, optimizer)
        self._training = state.is_world_process_zero
        if self._training:
            watch.started()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Report the optimizer's steps."""
        if self._training:
            watch.step(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any] | None = None,
                    **others: Any) -> None:
        """Report the qualities."""
        for name, value in (metrics or {}).items():
            if self._training and isinstance(value, (int, float)):
                watch.evaluated(value, name, step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Report the end."""
        if self._training:
            watch.stopped()
        self._training = False
