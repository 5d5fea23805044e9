"""The kinds of trial: training, a program of the user, a measurement; and the parts of their fields."""
