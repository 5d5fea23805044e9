"""`repro bench`: cost of the harness against bare alternatives, and of communication algorithms."""
