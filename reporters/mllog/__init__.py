"""MLPerf's log package."""
