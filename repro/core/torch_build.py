"""Build of torch and its use of this processor: two builds of one version may differ in the last bits."""

from __future__ import annotations

import hashlib
import re


def torch_build() -> dict[str, str]:
    """Return compiler, BLAS, instruction set in use, CUDA libraries, commit, and a hash over torch's configuration.

    Loads torch, so it is for processes that have it loaded.
    """
    import torch

    configuration = torch.__config__.show()
    found = {
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch_commit": str(torch.version.git_version), "torch_cuda": str(torch.version.cuda),
        "torch_config_sha256": hashlib.sha256(configuration.encode()).hexdigest()[:16],
    }
    if torch.version.cuda is not None:
        found["torch_cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        if torch.distributed.is_nccl_available():
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            found["torch_nccl"] = ".".join(map(str, version))
    for name, pattern in (("torch_compiler", r"- (GCC [\d.]+|clang [\d.]+)"), ("torch_blas", r"BLAS_INFO=(\w+)"),
                          ("torch_mkl", r"Math Kernel Library Version (\S+)"), ("torch_mkldnn", r"MKL-DNN v(\S+)")):
        if match := re.search(pattern, configuration):
            found[name] = match[1]
    return found
