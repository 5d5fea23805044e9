"""Traffic through the controller (the store of the rendezvous, and the log) of one trial, from kernel counters."""

from __future__ import annotations

from repro.core.frozen import Frozen


class Exchange(Frozen):
    """What all ranks together sent to the store and received from it: TCP payload, without headers."""

    sent_bytes: int
    received_bytes: int
    sent_messages: int
    """TCP segments with payload: a request or an answer of the store fits in one."""
    received_messages: int

    @property
    def bytes(self) -> int:
        """Bytes in both directions."""
        return self.sent_bytes + self.received_bytes

    @property
    def messages(self) -> int:
        """Messages in both directions."""
        return self.sent_messages + self.received_messages


class Frames(Frozen):
    """Frames of all nodes' interfaces to one network, headers and acknowledgements included."""

    sent_bytes: int
    received_bytes: int
    sent_frames: int
    received_frames: int

    @property
    def bytes(self) -> int:
        """Bytes in both directions."""
        return self.sent_bytes + self.received_bytes


class Controller(Frozen):
    """Traffic of a trial through its controller, which moves no model data, beside the frames between its nodes."""

    ranks: int
    startup: Exchange
    """From the first connection to `run_start`."""
    training: Exchange
    """From `run_start` to `run_stop`."""
    control_frames: Frames | None = None
    """Of the control network from `run_start` to `run_stop`; None: the launcher has no separate control network."""
    data_frames: Frames | None = None
    """Of the data network in the same time."""
    log_startup_bytes: int
    """Event log before `run_start`; rank 0 alone writes it."""
    log_training_bytes: int
    """From `run_start` to `run_stop`."""

    @property
    def bytes(self) -> int:
        """Bytes between the store and all ranks from the first connection to `run_stop`."""
        return self.startup.bytes + self.training.bytes
