"""Addresses fit to be shown: credentials never reach a log, a record, a report or a message."""

from __future__ import annotations

import re

USERINFO = re.compile(r"""(?<=://)[^/?#\s"'<>]*@""")
"""In running text; as far as the last @, because some passwords hold one."""
_NO_PORT = re.compile(r"(?<=://)(?![^/:@]*:\d+/)[^/:@]*:[^?#\s]*@")
"""A password with a slash in it, which no address may hold and some do all the same."""


def redacted(uri: str) -> str:
    """`uri` without user, password, query and fragment."""
    return re.split("[?#]", USERINFO.sub("", _NO_PORT.sub("", uri)), maxsplit=1)[0]
