"""Results of two cells -> what may be compared: pairs, misses, drift, differences that were read back."""
