"""Child process that measures this machine's GPUs for `repro.record.environment.device_facts`; prints JSON lines.

Every part runs by itself; one that fails is printed with its error. The process takes a minute at most, of which the
GPUs compute for a few seconds. Figures are the best of a few repetitions: they state what this machine can do, not what
a training reaches.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from repro.core import devices
from repro.record.environment.device_facts import Copied
from repro.record.environment.gpus import ask_nvidia_smi

COPY_BYTES = 64 << 20
LARGEST = 8192
"""Rows of the largest product that is tried."""
ENOUGH_SECONDS = 0.005
"""A product that takes as long is large enough, whatever the device."""
TOLERANCE = {"float32": 1e-5, "tf32": 1e-2, "float16": 1e-2, "bfloat16": 5e-2, "float8_e4m3fn": 0.2}
"""Largest error of a product, relative to its size; TF32 has 10 bits, of which a float32 product must not be made."""
Step = Callable[[torch.Tensor], torch.Tensor]
DRAWN = torch.Generator().manual_seed(1)


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


class Trial:
    """Runs each part on the GPUs and collects the errors of those that fail."""

    def __init__(self) -> None:
        kind = torch.accelerator.current_accelerator()
        assert kind is not None
        self.all = [devices.of_rank(kind.type, index) for index in range(torch.accelerator.device_count())]
        self.first = self.all[0]
        self.refused: dict[str, str] = {}
        devices.use(self.first)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Run the block; print an error of it as refused."""
        tell(doing=what)
        try:
            yield
        except Exception as error:
            text = str(error).strip().splitlines()
            self.refused[what] = f"{type(error).__name__}: {text[0] if text else ''}"[:300]
            tell(refused=self.refused)

    def seconds(self, call: Callable[[], Any], repeats: int = 5, device: str = "") -> float:
        """Return the least seconds of a call, until the device has ended it."""
        best = float("inf")
        for _ in range(repeats + 1):  # the first loads kernels
            devices.wait(device or self.first)
            began = time.perf_counter()
            call()
            devices.wait(device or self.first)
            best = min(best, time.perf_counter() - began)
        return best

    # ---- products

    def products(self) -> None:
        """Tell the rate of a product in every format, after its values were checked."""
        flops: dict[str, float] = {}
        for name in TOLERANCE:
            with self.of(f"product in {name}"):
                torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
                self._check(name)
                rows, taken = 256, 0.0
                while True:
                    call = self._product(name, *(torch.randn(rows, rows, device=self.first) for _ in range(2)))
                    taken = self.seconds(call, 3)
                    if taken > ENOUGH_SECONDS or rows >= LARGEST:
                        break
                    rows *= 2
                flops[name] = 2 * rows**3 / taken
                tell(flops=flops)
        torch.backends.cuda.matmul.allow_tf32 = False

    def _product(self, name: str, left: torch.Tensor, right: torch.Tensor) -> Callable[[], torch.Tensor]:
        if name in ("float32", "tf32"):
            return lambda: left @ right
        kind = getattr(torch, name)
        if name.startswith("float8"):
            one = torch.ones((), device=self.first)
            small, columns = left.to(kind), right.t().contiguous().to(kind).t()
            return lambda: torch._scaled_mm(small, columns, one, one, out_dtype=torch.bfloat16)
        small, other = left.to(kind), right.to(kind)
        return lambda: small @ other

    def _check(self, name: str) -> None:
        left, right = (torch.randn(256, 256, generator=DRAWN) for _ in range(2))
        exact = left.double() @ right.double()
        found = self._product(name, left.to(self.first), right.to(self.first))().double().cpu()
        error = float((found - exact).norm() / exact.norm())
        if not error < TOLERANCE[name]:
            raise ArithmeticError(f"its error is {error:.2g} of its size")
        if name == "tf32" and error < TOLERANCE["float32"]:
            raise ArithmeticError("the device has no TF32: products are those of float32")

    # ---- kernels

    def kernels(self) -> None:
        """Tell how long a small kernel takes, which operations are deterministic and which optimizers are fused."""
        small = torch.ones(8, device=self.first)
        with self.of("small kernel"):
            tell(kernel_seconds=self.seconds(lambda: small.add_(1), 50))
        found: dict[str, str] = {}
        torch.use_deterministic_algorithms(True)
        for name, call in self._operations().items():
            with self.of(f"deterministic {name}"):
                try:
                    one, other = call(), call()
                except RuntimeError as error:
                    if "deterministic" not in str(error):
                        raise
                    found[name] = "no"
                else:
                    found[name] = "yes" if torch.equal(one, other) else "differs"
                tell(deterministic=found)
        torch.use_deterministic_algorithms(False)
        fused: list[str] = []
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
            with self.of(f"fused {kind.__name__}"):
                weight = torch.nn.Parameter(torch.ones(16, device=self.first))
                weight.grad = torch.ones_like(weight)
                kind([weight], lr=0.1, fused=True).step()
                assert float(weight.detach().sum()) < 16, "it moved no weight"
                fused.append(kind.__name__)
                tell(fused=fused)

    def _operations(self) -> dict[str, Callable[[], torch.Tensor]]:
        """Return what nets are made of, each a forward and a backward pass that ends with one gradient."""
        images = torch.randn(4, 8, 17, 17, generator=DRAWN).to(self.first)
        rows = torch.randint(0, 10, (4096,), generator=DRAWN).to(self.first)
        values = torch.randn(4096, 8, generator=DRAWN).to(self.first)

        def through(function: Step, start: torch.Tensor) -> Callable[[], torch.Tensor]:
            def call() -> torch.Tensor:
                leaf = start.clone().requires_grad_()
                result = function(leaf)
                return torch.autograd.grad(result, leaf, torch.ones_like(result))[0]
            return call

        weight = torch.randn(8, 8, 3, 3, generator=DRAWN).to(self.first)
        return {
            "product": lambda: values.t() @ values,
            "convolution": through(lambda leaf: functional.conv2d(images, leaf), weight),
            "embedding": through(lambda leaf: functional.embedding(rows, leaf), torch.ones(10, 8, device=self.first)),
            "scatter add": lambda: torch.zeros(10, 8, device=self.first).index_add_(0, rows, values),
            "max pooling": through(lambda leaf: functional.max_pool2d(leaf, 3, 2), images),
            "adaptive average pooling": through(lambda leaf: functional.adaptive_avg_pool2d(leaf, 5), images),
            "bilinear resizing": through(
                lambda leaf: functional.interpolate(leaf, size=(25, 25), mode="bilinear"), images),
            "cumulative sum": lambda: values.cumsum(0),
            "cross entropy": through(lambda leaf: functional.cross_entropy(leaf, rows % 8), values),
            "attention": through(lambda leaf: functional.scaled_dot_product_attention(leaf, leaf, leaf),
                                 values.reshape(4, 2, 64, 64)[..., :32].contiguous()),
        }

    # ---- copies

    def copies(self) -> None:
        """Tell rate, latency and correctness of copies between the host and every GPU, and every pair of GPUs."""
        sent = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, generator=DRAWN)
        places = {"host": sent}
        with self.of("pinned memory"):
            places["pinned host"] = sent.pin_memory()
        buffers = {}
        for index, device in enumerate(self.all):
            with self.of(f"memory of GPU {index}"):
                buffers[str(index)] = sent.to(device)
        found: list[dict[str, Any]] = []
        for number, there in buffers.items():
            pairs = [*((name, number, places[name], there) for name in places),
                     *((number, name, there, places[name]) for name in places),
                     *((number, other, there, buffers[other]) for other in buffers if other != number)]
            for sender, receiver, source, target in pairs:
                with self.of(f"copy from {sender} to {receiver}"):
                    found.append(self._copied(sender, receiver, source, target, sent).model_dump())
                    tell(copies=found)

    def _copied(self, sender: str, receiver: str, source: torch.Tensor, target: torch.Tensor,
                sent: torch.Tensor) -> Copied:
        on_host = {"host", "pinned host"}
        gpus = [self.all[int(name)] for name in (sender, receiver) if name not in on_host]
        if receiver not in on_host:
            target.zero_()

        def copy(count: int) -> None:
            target[:count].copy_(source[:count], non_blocking=True)
            for gpu in gpus:
                devices.wait(gpu)

        if receiver in on_host:
            target = torch.zeros_like(target, pin_memory=receiver != "host")
        rate = COPY_BYTES / self.seconds(lambda: copy(COPY_BYTES), 2, gpus[0])
        latency = self.seconds(lambda: copy(4), 20, gpus[0])
        direct = devices.reach_each_other(*gpus) if len(gpus) == 2 else None
        intact = torch.equal(target.cpu(), sent)
        target.copy_(sent)  # it is sent from next, also if this copy failed
        return Copied(sender=sender, receiver=receiver, bytes_per_second=rate, latency_seconds=latency, direct=direct,
                      intact=intact)

    # ---- tools and clocks

    def clocks(self) -> None:
        """Tell clocks and power of every GPU while the first computes."""
        with self.of("clocks"):
            large = torch.randn(2048, 2048, device=self.first)
            began, calls = time.perf_counter(), 0
            while time.perf_counter() - began < 0.5:  # clocks take a moment to rise
                large @ large
                calls += 1
                if calls % 50 == 0:
                    devices.wait(self.first)
            fields = "clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu"
            for _ in range(calls):
                large @ large
            answer = ask_nvidia_smi(f"--query-gpu={fields}", "--format=csv,noheader")
            devices.wait(self.first)
            rows = [[part.strip() for part in line.split(",")] for line in answer.splitlines()]
            tell(clocks=[f"SM {row[0]}, memory {row[1]}, {row[2]} of at most {row[3]}, {row[4]} C"
                         for row in rows if len(row) == 5])


def tools() -> None:
    """Tell the tools that torch and DeepSpeed build kernels with."""
    try:
        from torch.utils import cpp_extension

        home = cpp_extension.CUDA_HOME
    except ImportError:  # it needs setuptools, and no GPU does
        home = None
    printed = devices.ask(f"{home}/bin/nvcc" if home else "nvcc", "--version")
    release = re.search(r"release ([\d.]+)", printed)
    tell(nvcc=release[1] if release else "", ninja=devices.ask("ninja", "--version").strip())


def main() -> None:
    """Compute on every GPU and name them; measure everything else, too, unless only that `first` part is wanted."""
    if not torch.accelerator.is_available():
        tell(problem="torch finds no GPU")
        return
    tell(doing="the first use of a GPU")
    trial = Trial()
    for device in trial.all:
        ones = torch.ones(8, 8, device=device)
        assert float((ones @ ones).sum()) == 512, "a product is wrong"
    tell(devices=[devices.name_of(device) for device in trial.all])
    if sys.argv[1:] == ["first"]:
        return
    trial.kernels()
    trial.products()
    trial.clocks()
    trial.copies()
    tell(doing="tools")
    tools()


if __name__ == "__main__":
    main()
