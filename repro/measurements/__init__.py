"""Measurements that come with the harness: one a file, the parts of larger ones in a folder."""
