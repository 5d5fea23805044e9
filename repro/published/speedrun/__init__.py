"""Public records of the nanoGPT speed-run: their logs, arms and claims."""
