"""Ways to train data-parallel: one engine a file."""
