"""Results as text and tables for a terminal."""
