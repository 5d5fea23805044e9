"""DeepSpeed's checkpoint files, read back with `weights_only`: DeepSpeed itself unpickles whatever they hold."""

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

from repro.engines.plain.tensor_files import UNFIT, refused

TAG = "model"
OWN_CLASSES = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
"""What DeepSpeed puts into its files besides tensors and plain values: classes without code that loading would run."""


class SafeFiles(TorchCheckpointEngine):  # type: ignore[misc]  # DeepSpeed has no types
    """Writes as torch does by default and reads tensors, plain values and DeepSpeed's own few classes only."""

    failure: BaseException | None = None
    """The first thing that could not be written: kept, not raised, because the other ranks wait for this one."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with self._remembered():
            Path(path).mkdir(parents=True, exist_ok=exist_ok)

    def save(self, state_dict: Any, path: str) -> None:
        with self._remembered():
            torch.save(state_dict, path)

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError where the disk is full
            self.failure = self.failure or error

    def written(self, folder: Path) -> None:
        """To be asked when all ranks have done with it.

        Args:
            folder: DeepSpeed's, below the checkpoint's.

        Raises:
            CheckpointError: this rank could not write.
        """
        failure, self.failure = self.failure, None
        if failure is not None:
            raise refused(folder, failure, "written") from failure

    def load(self, path: str, map_location: Any = None) -> Any:
        with told(Path(path).parent), torch.serialization.safe_globals(list(OWN_CLASSES)):
            return torch.load(path, map_location=map_location, weights_only=True)


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Whatever torch or DeepSpeed raises inside, as one line that names the checkpoint.

    Args:
        folder: DeepSpeed's, below the checkpoint's.

    Raises:
        CheckpointRefused: instead.
    """
    try:
        yield
    except UNFIT as error:
        raise refused(folder, error) from error
