"""The classes that training and launcher plug-ins fill in, one page each: `training`, `launching`.

Reporters fill in `repro.reporting`.
"""
