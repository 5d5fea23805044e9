"""Addresses fit to be shown: credentials never reach a log, a record, a report or a message."""

from __future__ import annotations

import re

USERINFO = re.compile(r"(?<=://)[^/@\s]*@")


def redacted(uri: str) -> str:
    """`uri` without user, password and query."""
    return USERINFO.sub("", uri).partition("?")[0]
