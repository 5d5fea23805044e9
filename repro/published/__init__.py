"""Published results of others, imported into records: MLPerf training logs, DAWNBench entries, speed-runs."""
