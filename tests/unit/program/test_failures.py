"""The line that says why a program failed, among what ranks and launchers print around it."""

from __future__ import annotations

import pytest

from repro.program.failures import Failures

RANKS = """\
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "train.py", line 9, in <module>
[rank0]:   File "train.py", line 4, in <module>
[rank1]: torch.distributed.DistBackendError: [1] connection closed by peer
[rank0]:     f()
[rank0]: ValueError: bad weights
"""
TORCHRUN = """\
E1128 17:20:31.000000 77 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
  File "/bin/torchrun", line 7, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
PLAIN = "Traceback (most recent call last):\n  File \"a.py\", line 1\n{}\n"


@pytest.mark.parametrize(("printed", "cause"), [
    (RANKS + TORCHRUN, "ValueError: bad weights"),
    (TORCHRUN, ""),
    (PLAIN.format("queue.Empty"), "queue.Empty"),
    (PLAIN.format("KeyError: 'x'") + "\nDuring handling of the above exception, another exception occurred:\n\n"
     + PLAIN.format("RuntimeError: no x"), "RuntimeError: no x"),
    ("[1,3]<stderr>:RuntimeError: on rank 3\n", "RuntimeError: on rank 3"),
    ("0: Traceback (most recent call last):\n0:   File\n0: my.Oddity: what\n", "my.Oddity: what"),
    ("[default0]:AssertionError\n", "AssertionError"),
    ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --foo\n" + TORCHRUN,
     "train.py: error: unrecognized arguments: --foo"),
    ("ConnectionError: connection refused\n", "ConnectionError: connection refused"),
    (PLAIN.format("subprocess.CalledProcessError: Command '['a']' returned non-zero exit status 1."), ""),
    ("loss 3\nNo errors: fine\nerror 5 %\nError rate\n", ""),
])
def test_the_cause_is_the_exceptions_own_line(printed: str, cause: str) -> None:
    failures = Failures()
    for line in printed.splitlines():
        failures.take(line)
    assert failures.cause == cause
