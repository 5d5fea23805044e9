"""One rank of one trial: training steps, evaluations, checkpoints, the log."""
