"""Code, libraries, devices and computers of a run, and how they differ from another start."""
