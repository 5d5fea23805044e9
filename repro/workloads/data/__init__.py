"""Data sets on disk: how a folder is prepared, identified by a manifest, and checked at every run."""
