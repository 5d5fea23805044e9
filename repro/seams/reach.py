"""Types of plug-in options whose value leads out of the run: a path, a command, a host.

A suite that a user names himself may set them. In a record that is run again they are another person's choice: such a
value is refused unless the user allows that very value (`repro reproduce RECORD --allow workload.folder=/data`). Any
text could be a file name, so an option of unmarked free text counts as one of unknown reach; `TextOption` says that its
value is neither opened, nor run, nor connected to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal


@dataclass(frozen=True, slots=True)
class Reach:
    """A mark in an option's annotation: what the option's text names."""

    what: Literal["path", "command", "host", "nothing"]


PathOption = Annotated[str, Reach("path")]
"""A file or folder that the plug-in reads or writes. `pathlib.Path` counts as one without a mark."""
CommandOption = Annotated[str, Reach("command")]
"""A program, or text that an interpreter runs; also the name of a module that is imported."""
HostOption = Annotated[str, Reach("host")]
"""A host, an address, or a name that is looked up over the network, such as the name of a model to download."""
TextOption = Annotated[str, Reach("nothing")]
"""Text that leads nowhere. `Literal` and `Enum` need no mark."""
SAFE = Reach("nothing")
"""The mark for other types, if the plug-in checks every value itself: `Annotated[dict[str, Any], SAFE]`."""
