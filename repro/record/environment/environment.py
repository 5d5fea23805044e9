"""Environment: the code, libraries, devices and settings of a run, and the identity of its data.

Environment variables are stored by allow-list; of all others only one hash is stored.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

from pydantic import Field

import repro
from repro.core import control_group
from repro.core.control_group import text_of
from repro.core.devices import on_gpu
from repro.core.errors import UsageError
from repro.core.files import LATEST_MS
from repro.core.frozen import Frozen
from repro.core.git import ask_git
from repro.core.machine import BUSY, IDLE, Machine, load_now
from repro.core.redact import SECRET, Scrubber, secrets
from repro.record.environment.device_facts import DeviceFacts
from repro.record.environment.gpus import interconnect, used_gpus, used_uuids
from repro.record.environment.placement import Placement, cores_here, host_here, split
from repro.record.environment.plugin_code import PluginCode

ALLOWED = re.compile(
    r"^(REPRO_IMAGE|REPRO_TIMING_LOCK|OMP_NUM_THREADS|MKL_(NUM_THREADS|CBWR)|KMP_AFFINITY|(CUDA|HIP|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|CUBLAS_WORKSPACE_CONFIG|PYTHONHASHSEED"
    r"|NVIDIA_TF32_OVERRIDE|CUDA_(LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS|DEVICE_ORDER|MODULE_LOADING)|CUDNN_[A-Z0-9_]+"
    r"|UCX_(TLS|NET_DEVICES|RNDV_[A-Z_]+|MAX_[A-Z_]+)|FI_(PROVIDER|EFA_[A-Z_]+)"
    r"|SLURM_(JOB_NUM_NODES|NTASKS|NTASKS_PER_NODE|CPUS_PER_TASK|GPUS|GPUS_PER_(NODE|TASK)|CPU_BIND_TYPE)"
    r"|PYTORCH_[A-Z0-9_]+|GLOO_[A-Z_]+|NCCL_[A-Z0-9_]+|TORCH_[A-Z0-9_]+|TORCHINDUCTOR_[A-Z0-9_]+|DS_[A-Z0-9_]+|DEEPSPEED_[A-Z0-9_]+)$"
)
NCCL = re.compile(
    r"^NCCL_(ALGO|PROTO|NTHREADS|BUFFSIZE|LAUNCH_MODE|DEBUG|DEBUG_SUBSYS|CROSS_NIC|(MIN|MAX)_(P2P_)?(NCHANNELS|CTAS)"
    r"|[A-Z0-9_]*_(DISABLE|ENABLE|LEVEL|THRESHOLD|TIMEOUT|CHUNKSIZE)|IB_(HCA|TC|SL|GID_INDEX|RETRY_CNT|QPS_PER_CONNECTION"
    r"|PCI_RELAXED_ORDERING|ADAPTIVE_ROUTING)|SOCKET_(IFNAME|FAMILY|NTHREADS)|NSOCKS_PERTHREAD|NET_GDR_READ|NET"
    r"|COMM_BLOCKING|IGNORE_CPU_AFFINITY|NET_SHARED_BUFFERS|WORK_FIFO_DEPTH)$"
)
"""Variables of NCCL whose values are recorded: they tune it. Others name files, hosts and plug-ins; a hash of each is
recorded, which shows that two runs differed."""
FLEETING = re.compile(r"^(_|PWD|OLDPWD|SHLVL|PS1|TERM.*|COLUMNS|LINES|COLORTERM|LS_COLORS|SSH_.*|DISPLAY|XDG_.*|DBUS_.*"
                      r"|WINDOWID|HISTFILE|REPRO_PRICE_PER_HOUR|PYTEST_.*|TMUX.*|STY)$")
"""Variables of a terminal or session: they differ between runs and have no effect on training."""
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
NAMED = ("torch", "deepspeed", "mlflow", "numpy", "scipy", "scikit-learn", "pandas", "pydantic")


VARIABLE = "REPRO_PRICE_PER_HOUR"
FORM = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) *([A-Z]{3})")


class Price(Frozen):
    """The price of all machines of a run together, declared by the user."""

    per_hour: float = Field(gt=0, allow_inf_nan=False)
    currency: str = Field(pattern=r"^[A-Z]{3}$")
    """ISO 4217."""

    def of(self, seconds: float) -> float:
        """Return the cost of some seconds, in the currency, as in DAWNBench: time times the machine's price."""
        return self.per_hour * seconds / 3600

    def text(self, seconds: float) -> str:
        """Return the cost of some seconds with its currency: `0.042 USD`."""
        return f"{self.of(seconds):.3g} {self.currency}"


def declared_price(environment: Mapping[str, str]) -> Price | None:
    """Return the price that the environment declares; None if there is none.

    Raises:
        UsageError: it has another form than `3.06 USD`, or is not positive.
    """
    stated = environment.get(VARIABLE, "").strip()
    if not stated:
        return None
    found = FORM.fullmatch(stated)
    if found is None or not float(found[1]) > 0:
        raise UsageError(f"{VARIABLE}={stated}: must be a price and a currency, as in {VARIABLE}='3.06 USD'")
    return Price(per_hour=float(found[1]), currency=found[2])


class DataSet(Frozen):
    """Identity of a data set by its full content."""

    workload: str
    name: str
    version: str
    sha256: str
    train_samples: int
    eval_samples: int
    licence: str
    source: str
    synthetic: bool
    test_views: int | None = None
    """Number of times that an evaluation shows each test sample; None: the workload does not state it."""


class Environment(Frozen):
    """The code, libraries, devices, settings and data of a run."""

    repro_version: str
    python: str
    system: str
    cpu: str
    cores: int
    memory_bytes: int | None = None
    device: str
    devices: tuple[str, ...]
    interconnect: str
    libraries: dict[str, str]
    """Versions of the libraries that affect the figures."""
    packages: tuple[str, ...]
    """All installed packages, name==version, sorted."""
    settings: dict[str, str]
    """Environment variables that affect training, by allow-list; those that say where it ran are its placement's."""
    commit: str | None = None
    dirty: bool | None = None
    load_1min: float | None = None
    busy_cores: float | None = None
    """Cores that were busy for a moment before the run; measured only if `load_1min` is high, since that still counts
    work that has ended, such as an installation."""
    started_ms: int = Field(ge=0, le=LATEST_MS)
    """Wall clock at the start of the run, milliseconds since 1970: distinguishes two executions of one plan."""
    data: tuple[DataSet, ...] = ()
    governor: str | None = None
    """The kernel's policy for the clock rate of a core; None: unknown."""
    limits: dict[str, str] = Field(default_factory=dict)
    """Limits of the control group (container), in the kernel's notation."""
    others_sha256: str | None = None
    """Hash of the environment variables that are not stored, without secrets and session variables."""
    diff_sha256: str | None = None
    """Hash of the uncommitted changes to the code; None: there are none, or no checkout."""
    plugins: tuple[PluginCode, ...] = ()
    """The code of the plan's plug-ins that are not of this package."""
    price: Price | None = None
    """Declared price of all machines of the run; None: none was declared."""
    tried: DeviceFacts | None = None
    """What the GPUs did when tried before the run; None: it uses none."""
    placement: Placement | None = None
    """Where the first start was put; None: an early record, which has its settings and limits among the others."""

    @property
    def high_load(self) -> float | None:
        """The load before the run if other work made the machine busy; None: it was not, or that is not known."""
        over = self.busy_cores is not None and self.busy_cores < IDLE * self.cores
        return None if over or self.load_1min is None or self.load_1min <= BUSY * self.cores else self.load_1min


def take(
    machine: Machine, data: tuple[DataSet, ...], plugins: tuple[PluginCode, ...] = (), named: bool = False
) -> Environment:
    """Return the environment of this process and machine.

    Args:
        named: it takes part in a run on several computers, whose names the record has.
    """
    import psutil

    packages, status = _importable(tuple(sys.path)), _git("status", "--porcelain", "--untracked-files=no")
    variables, limits = settings(os.environ), control_group.limits()
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    memory = psutil.virtual_memory().total
    return Environment(
        repro_version=repro.__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu(), cores=machine.cores, memory_bytes=memory, device=machine.device,
        devices=used_gpus() if on_gpu(machine.device) else (),
        interconnect=interconnect(machine.device_count if on_gpu(machine.device) else 0),
        libraries={name: packages[name] for name in NAMED if name in packages},
        packages=tuple(sorted(f"{name}=={number}" for name, number in packages.items())),
        settings=split(variables, places=False), commit=commit(), dirty=None if status is None else bool(status),
        load_1min=load, busy_cores=load_now() if load is not None and load > BUSY * machine.cores else None, data=data,
        started_ms=time.time_ns() // 1_000_000, governor=text_of(GOVERNOR).partition("\n")[0].strip() or None,
        limits=split(limits, places=False),
        others_sha256=others_sha256(os.environ),
        diff_sha256=edits_sha256(),
        plugins=plugins, price=declared_price(os.environ),
        placement=Placement(
            host=host_here(named), cores=cores_here(), memory_bytes=memory,
            gpus=tuple(sorted(used_uuids() or ())) if on_gpu(machine.device) else (),
            settings=split(variables, places=True), limits=split(limits, places=True)),
    )


@cache  # every METADATA is parsed: a tenth of a second, and what a process imports from a path it imports only once
def _importable(_: tuple[str, ...]) -> dict[str, str]:
    """Return package -> version of everything on this import path."""
    return installed(distributions())


def installed(found: Iterable[Distribution]) -> dict[str, str]:
    """Return package -> version; of two packages with one name the first, which is the one that Python imports."""
    packages: dict[str, tuple[str, str]] = {}
    for item in found:
        if name := item.metadata["Name"]:
            packages.setdefault(re.sub(r"[-_.]+", "-", name).lower(), (name, item.version))
    return dict(packages.values())


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables on the allow-list whose names do not look like secrets, without passwords in addresses; of
    those that do not tune but name something, a hash.
    """
    hidden = Scrubber(secrets(environment))
    found = {name: hidden.masked(value) for name, value in sorted(environment.items())
             if ALLOWED.match(name) and not SECRET.search(name)}
    return {name: hashed(value) if name.startswith("NCCL_") and not NCCL.match(name) else value
            for name, value in found.items()}


def hashed(value: str) -> str:
    """Return a hash that shows only that two values differ."""
    return f"sha256:{hashlib.sha256(value.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"


def others_sha256(environment: Mapping[str, str]) -> str:
    """Return a hash of the variables that are not stored, without secrets: a hashed secret could be guessed."""
    hidden = Scrubber(secrets(environment))
    lines = [f"{name}={hidden.masked(value)}" for name, value in sorted(environment.items())
             if not ALLOWED.match(name) and not SECRET.search(name) and not FLEETING.match(name)]
    return hashlib.sha256("\0".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _cpu() -> str:
    lines = text_of(Path("/proc/cpuinfo")).splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or "unknown"


def commit() -> str | None:
    """Return the commit of the checkout that this package runs from; None if it runs from no checkout."""
    return _git("rev-parse", "HEAD")


def edits_sha256() -> str | None:
    """Return a hash of the uncommitted changes to this package's checkout; None: there are none, or no checkout."""
    changes = _git("diff", "HEAD", "--no-ext-diff")
    return hashlib.sha256(changes.encode()).hexdigest() if changes else None


def _git(*arguments: str) -> str | None:
    """Return git's answer about the checkout that this package runs from; None if it runs from no checkout."""
    root = Path(repro.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    return ask_git(root, *arguments)
