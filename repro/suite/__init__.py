"""What a suite says: read, checked, expanded into a plan."""
