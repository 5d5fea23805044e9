"""The input of a rank: the order of samples, batches read ahead, the audit of what was fed."""
