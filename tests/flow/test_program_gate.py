"""The gate of programs: planted mistakes in three programs are stopped with their cause, healthy variants pass."""

from __future__ import annotations

import importlib.util

import pytest

from repro.program.gate.judge import Difference, Intended
from tests.traced_programs import against, traced

NEEDS = {"accelerated.py": "accelerate", "trainer.py": "transformers"}
PLAIN = {"loop.py": ("--backend", "none"), "accelerated.py": (), "trainer.py": ("--processes", "1")}
"""Arguments of the reference, in one process."""
DEEPSPEED = (("ACCELERATE_USE_DEEPSPEED", "true"),)

# program, arguments, check and step of the first difference, words of the cause
MISTAKES = [
    ("loop.py", "ddp", "other seed", "initial weights", 0, "another seed"),
    ("loop.py", "ddp", "bf16 weights", "formats", 0, "no float32 master weights"),
    ("loop.py", "ddp", "frozen layer", "tensors", 0, "is frozen"),
    ("loop.py", "ddp", "same data", "input", 1, "every rank was fed the same"),
    ("loop.py", "ddp", "other order", "input", 1, "another order or seed of shuffling"),
    ("loop.py", "ddp", "other tokens", "input", 1, "prepared differently"),
    ("loop.py", "ddp", "evaluation mode", "flags", 1, "evaluation mode"),
    ("loop.py", "ddp", "smoothing", "loss", 1, "smoothing"),
    ("loop.py", "ddp", "sum", "loss", 1, "the sum over a batch"),
    ("loop.py", "ddp --micro 2", "not divided", "loss", 1, "summed over the micro-steps"),
    ("loop.py", "ddp --micro 2", "lost micro-batch", "input", 1, "micro-batches"),
    ("loop.py", "none", "", "ranks", 1, "not averaged over the ranks"),
    ("loop.py", "ddp", "no reduction", "ranks", 1, "not averaged over the ranks"),
    ("loop.py", "ddp", "replica drifts", "ranks", 3, "drifted apart"),
    ("loop.py", "ddp", "sum over ranks", "clipping", 1, "summed over the ranks"),
    ("loop.py", "ddp", "clipping", "clipping", 1, "clipped to norm 0.5"),
    ("loop.py", "ddp", "clipping by value", "clipping", 1, "by value"),
    ("loop.py", "ddp", "left out", "clipping", 1, "the optimizer was not given it"),
    ("loop.py", "zero2", "silent clipping", "clipping", 1, "clips at norm 1 unless"),
    ("loop.py", "ddp", "rate times ranks", "rate", 1, "multiplied by the number of ranks"),
    ("loop.py", "ddp", "late scale", "rate", 3, "the schedule"),
    ("loop.py", "ddp", "decay", "rate", 1, "weight_decay is 0.2"),
    ("loop.py", "ddp", "betas", "rate", 1, "betas"),
    ("loop.py", "ddp", "adam", "update", 1, "Adam ran, AdamW in the reference"),
    ("loop.py", "ddp", "lost moments", "update", 2, "lost or rounded"),
    ("loop.py", "ddp", "a rank rests", "flags", 1, "on rank 1"),
    ("loop.py", "ddp --bf16", "other seed", "initial weights", 0, "another seed"),
    ("loop.py", "ddp --bf16", "smoothing", "gradient", 1, "no factor explains it"),
    ("loop.py", "ddp --bf16", "shuffled labels", "loss", 1, "other labels"),
    ("loop.py", "ddp --bf16", "sum over ranks", "clipping", 1, "summed over the ranks"),
    ("loop.py", "ddp --bf16", "clipping", "clipping", 1, "clipped to norm 0.5"),
    ("loop.py", "ddp --bf16", "adam", "update", 2, "Adam ran, AdamW in the reference"),
    ("loop.py", "ddp --bf16", "lost moments", "update", 2, "lost or rounded"),
    ("accelerated.py", "ddp --precision bf16", "shuffled labels", "loss", 1, "other labels"),
    ("trainer.py", "ddp --bf16", "clipping", "clipping", 1, "clipped to norm 0.01"),
    ("accelerated.py", "fsdp2", "", "wrapper", 0, "fell back"),
    ("accelerated.py", "zero2", "falls back", "wrapper", 0, "fell back"),
    ("accelerated.py", "ddp", "half weights", "formats", 0, "no float32 master weights"),
    ("accelerated.py", "ddp", "frozen part", "tensors", 0, "is frozen"),
    ("accelerated.py", "ddp", "head built later", "clipping", 1, "the optimizer was not given it"),
    ("accelerated.py", "ddp", "not normalised", "input", 1, "prepared differently"),
    ("accelerated.py", "ddp", "shuffled labels", "loss", 1, "other labels"),
    ("accelerated.py", "ddp", "batch of all", "input", 1, "2 times"),
    ("accelerated.py", "ddp", "loader not prepared", "input", 1, "every rank was fed the same"),
    ("accelerated.py", "ddp", "schedule not prepared", "rate", 2, "the schedule"),
    ("accelerated.py", "ddp", "evaluated before", "flags", 1, "evaluation mode"),
    ("accelerated.py", "ddp", "sum", "loss", 1, "the sum over a batch"),
    ("accelerated.py", "ddp --micro 2", "own backward", "loss", 1, "summed over the micro-steps"),
    ("accelerated.py", "ddp", "clipping", "clipping", 1, "clipped to norm 0.1"),
    ("accelerated.py", "zero2", "silent clipping", "clipping", 1, "clips at norm 1 unless"),
    ("trainer.py", "ddp", "other seed", "initial weights", 0, "another seed"),
    ("trainer.py", "ddp", "half weights", "formats", 0, "no float32 master weights"),
    ("trainer.py", "ddp", "untied", "tensors", 0, "other models"),
    ("trainer.py", "ddp", "frozen part", "tensors", 0, "is frozen"),
    ("trainer.py", "ddp", "other dropout", "formats", 0, "dropout rate"),
    ("trainer.py", "ddp", "other data seed", "input", 1, "another order or seed of shuffling"),
    ("trainer.py", "ddp", "other tokens", "input", 1, "prepared differently"),
    ("trainer.py", "ddp", "batch", "input", 1, "2 times"),
    ("trainer.py", "ddp", "shuffled labels", "input", 1, "prepared differently"),
    ("trainer.py", "ddp", "smoothing", "input", 1, "labels go to the loss alone"),
    ("trainer.py", "ddp", "clipping", "clipping", 1, "clipped to norm 0.01"),
    ("trainer.py", "ddp", "rate times ranks", "rate", 1, "multiplied by the number of ranks"),
    ("trainer.py", "ddp", "warm-up", "rate", 1, "lr is 0"),
    ("trainer.py", "ddp", "other schedule", "rate", 2, "the schedule"),
    ("trainer.py", "ddp", "decay", "rate", 1, "weight_decay is 0.1"),
    ("trainer.py", "ddp", "betas", "rate", 1, "betas"),
    ("trainer.py", "ddp", "epsilon", "rate", 1, "eps"),
    ("trainer.py", "ddp", "another rule", "update", 1, "SGD ran, AdamW in the reference"),
]
FEW = (("ddp", "lost moments"),)
"""The slice of every run of the tests."""

HEALTHY = [
    *(("loop.py", f"{backend}{more}") for backend in ("ddp", "compiled", "fsdp2", "zero0", "zero1", "zero2", "zero3")
      for more in ("", " --micro 2", " --optimizer sgd") if not ("fsdp2" in backend and "micro" in more)),
    ("loop.py", "by-hand"),
    *(("loop.py", f"{backend} --bf16") for backend in ("ddp", "fsdp2", "zero1", "zero2", "zero3")),
    *(("accelerated.py", f"{backend}{more}") for backend in ("ddp", "zero1", "zero2", "zero3")
      for more in ("", " --micro 2", " --precision bf16") if not ("zero" in backend and "bf16" in more)),
    *(("trainer.py", f"{backend}{more}") for backend in ("ddp", "zero1", "zero2", "zero3")
      for more in ("", " --micro 2", " --clip 0.5", " --bf16")),
]
"""Each against one process with the same optimizer, format and clipping."""


def slow_but(first: tuple[tuple[str, str], ...], cases: list[tuple]) -> list:
    return [pytest.param(*case, id=" ".join(map(str, case[:3])),
                         marks=[] if case[1:3] in first else [pytest.mark.slow]) for case in cases]


def judged(program: str, arguments: str, mistake: str, wrapper: str, seed: str = "11") -> Difference | None:
    """Return the first difference of a variant from the plain training with the same settings."""
    if importlib.util.find_spec(NEEDS.get(program, "torch")) is None:
        pytest.skip(f"{NEEDS[program]} is not installed")
    backend, *settings = arguments.split()
    kept = [word for index, word in enumerate(settings)
            if word != "--micro" and settings[index - 1:index] != ["--micro"]]
    plain = (*PLAIN[program], *kept)
    reference = traced(program, plain, 1, seed=seed)
    null = traced(program, plain, 1, reference.width, seed=seed)
    ours = traced(program, ("--backend", backend, *settings, *(("--mistake", mistake) if mistake else ())), 2,
                  environment=DEEPSPEED if "zero" in backend and program == "accelerated.py" else (), seed=seed)
    return against(ours, reference, null, Intended(2, wrapper))


@pytest.mark.parametrize(("program", "arguments", "mistake", "check", "step", "cause"), slow_but(FEW, MISTAKES))
def test_a_planted_mistake_is_stopped_with_its_cause(
    program: str, arguments: str, mistake: str, check: str, step: int, cause: str
) -> None:
    wrapper = {"fsdp2": "fsdp2", "zero2": "deepspeed-2"}.get(arguments.split()[0], "")
    found = judged(program, arguments, mistake, wrapper)
    assert found is not None, "it passed"
    assert (found.check, found.step) == (check, step), found.text
    assert cause in found.text


@pytest.mark.slow
@pytest.mark.parametrize(("program", "arguments"), HEALTHY)
def test_a_healthy_variant_passes(program: str, arguments: str) -> None:
    found = judged(program, arguments, "", f"deepspeed-{arguments[4]}" if "zero" in arguments else "")
    assert found is None, found.text
