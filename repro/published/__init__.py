"""Published results of others, imported into records: MLPerf training logs and DAWNBench entries."""
