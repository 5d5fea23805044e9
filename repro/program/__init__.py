"""A user's training program: its command, its output, its clocks."""
