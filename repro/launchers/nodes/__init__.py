"""Several computers: agents that hold a secret join the one where `repro run` runs, and each launches its ranks."""
