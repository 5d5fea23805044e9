"""Results that others published, read into records of our own form: MLPerf training logs, DAWNBench entries."""
