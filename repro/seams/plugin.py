"""The base of every plug-in: one class, its fields its validated options.

Heavy imports (torch, deepspeed, mlflow) happen inside methods. `unsupported` returns what a plug-in cannot do under a
setting, which becomes a skipped trial with that reason in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidatorFunctionWrapHandler, field_validator
from pydantic_core import PydanticCustomError

TORCH_OPTIONS = ("compile", "activation_checkpointing", "channels_last", "cudnn_benchmark")
"""The fields of `ModelOptions`: what engines on torch carry out."""


class Compilation(BaseModel):
    """torch.compile of the model; `true` in a suite means all defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"] = "default"
    dynamic: bool | None = Field(None, description="true: shapes are symbols; false: every shape is compiled; null: "
                                                   "symbols from the second shape on")
    cache: Literal["cold", "warm"] = Field(
        "cold", description="cold: every trial compiles everything; warm: a trial finds everything compiled, or "
                            "compiles it once before its clocks start")

    @property
    def records_graphs(self) -> bool:
        """The mode records CUDA graphs, for weights that stay where they are in memory."""
        return self.mode in ("reduce-overhead", "max-autotune")

    def why_not_gathered(self, engine: str) -> str:
        """Return why the mode cannot be used where `engine` gathers weights at other addresses in every step."""
        return (f"compile mode {self.mode} records CUDA graphs, which need weights at fixed addresses; {engine} "
                "gathers weights at new addresses in every step, so graphs would be recorded in timed steps; use mode "
                "max-autotune-no-cudagraphs")

    def __str__(self) -> str:
        """Return it as sessions read it back."""
        shapes = "auto" if self.dynamic is None else str(self.dynamic).lower()
        return f"{self.mode}, dynamic {shapes}"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The same choices for every engine; the names of its fields are those of a trial."""

    compile: Compilation | None = None
    activation_checkpointing: bool = False
    """Activations inside a block are computed again in the backward pass instead of kept."""
    channels_last: bool = False
    """Images, and the weights of convolutions where the engine leaves them their shape, lie channel by channel."""
    cudnn_benchmark: bool = False
    """cuDNN times its kernels for every new shape and takes the fastest."""

    def chosen(self) -> Iterator[str]:
        """Yield the names of the options that differ from plain training."""
        yield from (name for name in TORCH_OPTIONS if getattr(self, name))


Rows = Literal["any", "backend", "none"]
"""any: with every communication algorithm; backend: by torch's operators on divided tensors, whose collectives only the
backend carries out; none: the rule needs complete tensors."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The choices of a trial and the machine it runs on: the input of `Plugin.unsupported`.

    The names are for messages. What a choice can do is in the fields below them, so that a plug-in under another name
    is judged alike.
    """

    workload: str
    engine: str
    comm: str
    precision: str
    optimizer: str
    launcher: str
    processes: int
    accumulation: int
    device: str
    """"cpu" or "cuda"."""
    device_count: int
    """GPUs of the computers that the trial takes; 0 on a CPU-only machine."""
    cores: int = 0
    """CPU cores that the ranks may use; 0: those of this process."""
    installed: bool | None = None
    """What `lacks` assumes to be installed, all (True) or nothing (False); None: it looks."""
    compression: str = "none"
    overlap: bool | None = None
    determinism: str = "seeded"
    weights: str = "float32"
    """Type of the weights that the model computes with."""
    simulated: bool = False
    """True: the engine simulates all ranks in one process."""
    emulated: bool = False
    """True: nodes and links are emulated, so every figure is labelled so."""
    own_algorithm: bool = False
    """True: `comm` has an algorithm of its own (`Comm.own_algorithm`); False: the backend's collectives."""
    passed_through: tuple[str, ...] = ()
    """Collectives that `comm` leaves to the backend (`Comm.passes_through`), if it has an algorithm of its own."""
    autocast: str | None = None
    """Type of products inside autocast (`Precision.autocast`); None: no autocast."""
    master_weights: bool = False
    """True: the optimizer updates a float32 copy of the weights (`Precision.master`)."""
    model: ModelOptions = ModelOptions()  # frozen
    whole_tensors: bool = False
    """True: the optimizer's rule looks at whole tensors (`Optimizer.whole_tensors`)."""
    on_rows: Rows = "any"
    """Where the optimizer's rule is right on tensors whose rows are divided (`Optimizer.on_rows`)."""
    averages: bool = False
    """True: evaluations use other weights than training (`Optimizer.evaluates_other_weights`)."""
    zero_stage: int | None = None
    """Stage of ZeRO by which the engine divides over the ranks (`Engine.zero_stage`)."""
    preconditions: bool = False
    """True: the engine carries out a preconditioner (`Engine.preconditions`)."""
    steps: int = 0
    """Most optimizer steps that the trial may take; 0: not known."""
    hidden_matrices: bool | None = None
    """False: between its first and its last layer the model has convolutions only, or nothing; None: not stated."""
    linear_layers: bool | None = None
    """False: all layers of the model are convolutions; None: not stated."""
    clips: bool = False
    """True: gradients are clipped to a global norm."""
    reads_ahead: bool = False
    """True: input workers, or a stream: samples are read in an order that is fixed beforehand."""
    servers: int = 0
    """Processes beside the `processes` that train (`Engine.server_processes`)."""
    tensors: int | None = None
    """Tensors of the model that are trained (`Workload.tensor_count`); None: not stated."""

    def lacks(self, missing: Callable[[], str | None]) -> str | None:
        """Return what `missing` says is not installed here; of another machine's plan, what `installed` assumes."""
        if self.installed is None:
            return missing()
        return None if self.installed else "not installed"

    @property
    def on_gpu(self) -> bool:
        """Every rank has a GPU of its own; False: all compute on the processor."""
        return self.device != "cpu"  # the base of plug-ins imports nothing of the project

    @property
    def launched(self) -> int:
        """Processes that the launcher starts."""
        return self.processes + self.servers


def no_boolean_number(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Return the validated value of a field; true and false are not numbers, as pydantic would read them.

    Raises:
        PydanticCustomError: one of them stands where a number does.
    """
    found = handler(value)
    if isinstance(value, bool) and isinstance(found, int | float) and not isinstance(found, bool):
        raise PydanticCustomError("boolean", "must be a number")
    return found


class Plugin(BaseModel):
    """A plug-in: frozen, validated options, and what it cannot do."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)
    _numbers = field_validator("*", mode="wrap")(no_boolean_number)

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules worth loading once in the fork server instead of once in every rank."""
    always_shown: ClassVar[tuple[str, ...]] = ()
    """Options that labels name even at their default, because a reader would ask."""
    one_device: ClassVar[bool] = False
    """A library of it chooses the kind of device once, for all processes of a run: no plan has both kinds with it."""
    from_data: ClassVar[tuple[str, ...]] = ()
    """Options that `found_here` fills in, such as the number of samples of a prepared data set."""

    @classmethod
    def found_here(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return values of the options `from_data`, as found on this machine when a suite with `options` is read.

        They become part of the plan like options that the suite states, so that a record needs no data to be read.
        """
        return {}

    def unsupported(self, setting: Setting) -> str | None:
        """Return why this plug-in cannot run under `setting`, in one sentence; None if it can."""
        return None

    def note(self, setting: Setting) -> str | None:
        """Return what a reader of the plan should know about this plug-in under `setting`; None: nothing."""
        return None


@dataclass(frozen=True, slots=True)
class Reach:
    """A mark in an option's annotation: what the option's text names; a path, a command or a host leads out of the run.

    A suite that a user names himself may set such an option. In a record that is run again it is another person's
    choice: it is refused unless the user allows that very value (`repro reproduce RECORD --allow
    workload.folder=/data`). Any text could be a file name, so unmarked free text counts as one of unknown reach;
    `TextOption` says that its value is neither opened, nor run, nor connected to.
    """

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
