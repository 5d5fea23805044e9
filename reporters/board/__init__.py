"""The pages of a board."""
