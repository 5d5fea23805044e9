"""One rank of one trial: training steps, evaluations, the log."""
