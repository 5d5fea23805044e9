"""MLPerf: logs, results folders, system descriptions, reference convergence points, and the rules of the score."""
