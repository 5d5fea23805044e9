"""Error rates and power of the verdicts, simulated through the whole path from results to comparisons."""
