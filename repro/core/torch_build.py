"""How torch was built and what it uses of this processor: two builds of one version may differ in the last bits."""

from __future__ import annotations

import hashlib
import re


def torch_build() -> dict[str, str]:
    """Compiler, BLAS, instruction set in use, commit, and a hash over all that torch says of its build.

    Loads torch; for processes that have it loaded anyway.
    """
    import torch

    told = torch.__config__.show()
    found = {
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch_commit": str(torch.version.git_version), "torch_cuda": str(torch.version.cuda),
        "torch_config_sha256": hashlib.sha256(told.encode()).hexdigest()[:16],
    }
    for name, pattern in (("torch_compiler", r"- (GCC [\d.]+|clang [\d.]+)"), ("torch_blas", r"BLAS_INFO=(\w+)"),
                          ("torch_mkl", r"Math Kernel Library Version (\S+)"), ("torch_mkldnn", r"MKL-DNN v(\S+)")):
        if match := re.search(pattern, told):
            found[name] = match[1]
    return found
