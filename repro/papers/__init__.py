"""What only the suite of one paper needs, one room a paper; the core imports none of it."""
