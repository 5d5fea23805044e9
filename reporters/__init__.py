"""Reporters: each writes a record somewhere else (a page, a tracking server), reached by name through the registry."""
