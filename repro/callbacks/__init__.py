"""`repro.watch` for training loops that belong to a framework; each file needs its framework installed."""
