"""The parent process of a run: launches trials, watches them, collects results."""
