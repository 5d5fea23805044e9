"""Training with DeepSpeed: configuration, session, checkpoint files."""
