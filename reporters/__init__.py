"""Reporters: each writes a record in another form (a page, a tracking store); the registry loads them by name."""
