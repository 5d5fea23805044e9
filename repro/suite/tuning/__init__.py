"""The tuning of a suite: its search, its contenders, its two phases."""
