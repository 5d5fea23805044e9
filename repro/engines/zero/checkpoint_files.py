"""DeepSpeed's checkpoint files, read with `weights_only`: DeepSpeed itself unpickles all of their content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from repro.engines.plain.tensor_files import UNFIT, as_checkpoint_error

TAG = "model"
OWN_CLASSES = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
"""Classes in DeepSpeed's files in addition to tensors and plain values; loading them runs no code."""


class SafeFiles(TorchCheckpointEngine):  # type: ignore[misc]  # DeepSpeed has no types
    """Writes like `torch.save`; reads only tensors, plain values and `OWN_CLASSES`."""

    failure: BaseException | None = None
    """The first error of writing: kept instead of raised, because the other ranks wait for this one."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with self._keep_failure():
            Path(path).mkdir(parents=True, exist_ok=exist_ok)

    def save(self, state_dict: Any, path: str) -> None:
        with self._keep_failure():
            torch.save(state_dict, path)

    @contextmanager
    def _keep_failure(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError if the disk is full
            self.failure = self.failure or error

    def raise_failure(self, folder: Path) -> None:
        """Raise the kept error, after all ranks have finished writing.

        Args:
            folder: DeepSpeed's, below the checkpoint's.

        Raises:
            CheckpointError: this rank could not write.
        """
        failure, self.failure = self.failure, None
        if failure is not None:
            raise as_checkpoint_error(folder, failure, "written") from failure

    def load(self, path: str, map_location: Any = None) -> Any:
        with refuse_unreadable(Path(path).parent), torch.serialization.safe_globals(list(OWN_CLASSES)):
            return torch.load(path, map_location=map_location, weights_only=True)


@contextmanager
def refuse_unreadable(folder: Path) -> Iterator[None]:
    """Turn every error of torch or DeepSpeed inside into one line that names the checkpoint.

    Args:
        folder: DeepSpeed's, below the checkpoint's.

    Raises:
        CheckpointRefused: reading fails.
    """
    try:
        yield
    except UNFIT as error:
        raise as_checkpoint_error(folder, error) from error
