"""One run on disk: its folder, results, environment, index, checkpoints and lock."""
