"""Rankings over workloads: contenders, scores, the check of their tuning."""
