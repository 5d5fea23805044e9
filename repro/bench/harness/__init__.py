"""`repro bench`: the cost of the harness itself, against bare alternatives."""
