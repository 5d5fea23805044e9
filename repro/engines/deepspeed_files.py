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

from repro.engines.tensor_files import UNFIT, refused

TAG = "model"
OWN_CLASSES = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
"""What DeepSpeed puts into its files besides tensors and plain values: classes without code that loading would run."""


class SafeFiles(TorchCheckpointEngine):  # type: ignore[misc]  # DeepSpeed has no types
    """Writes as torch does by default and reads tensors, plain values and DeepSpeed's own few classes only."""

    def save(self, state_dict: Any, path: str) -> None:
        torch.save(state_dict, path)

    def load(self, path: str, map_location: Any = None) -> Any:
        with told(Path(path).parent), torch.serialization.safe_globals(list(OWN_CLASSES)):
            return torch.load(path, map_location=map_location, weights_only=True)


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Whatever torch or DeepSpeed raises inside, as one line that names the checkpoint.

    Args:
        folder: DeepSpeed's, below the checkpoint's.

    Raises:
        CheckpointError: instead.
    """
    try:
        yield
    except UNFIT as error:
        raise refused(folder, error) from error
