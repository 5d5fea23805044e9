"""A board: records of many people as a static site."""
