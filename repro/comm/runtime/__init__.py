"""Runs schedules inside a torch.distributed process group."""
