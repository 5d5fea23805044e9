"""A run in one file that travels: packed, unpacked safely, verified, compared with another."""
