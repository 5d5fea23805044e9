"""What must not leave a machine, taken out of text: credentials, and places in its file system.

A credential is a value of the environment whose name looks like one (`SECRET`), or the user part of an address. What a
program printed under another name is known to nobody and stays.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

USERINFO = re.compile(r"""(?<=://)[^/?#\s"'<>]*@""")
"""In running text; as far as the last @, because some passwords hold one."""
_NO_PORT = re.compile(r"(?<=://)(?![^/:@]*:\d+/)[^/:@]*:[^?#\s]*@")
"""A password with a slash in it, which no address may hold and some do all the same."""
SECRET = re.compile(r"(TOKEN|SECRET|PASS|PWD|KEY|CREDENTIAL|AUTH|SIGNATURE)", re.IGNORECASE)
"""Names of variables whose values are nobody's business."""
SHORTEST = 6
"""Characters below which a value is no credential worth the name; replacing it would spoil ordinary text."""
_PART = r"""(?:[^\s/"'<>|:,;()\[\]{}\\]|\\u[0-9a-fA-F]{4})"""
_ROOT = r"(?:(?:(?<![\w./<>~:-])|(?<=-[ILB])|(?<=[-=\s\d]>))/+|(?<=:)(?:/(?!/)|/{3,}))"
ABSOLUTE = re.compile(rf"{_ROOT}(?:{_PART}+/)+{_PART}*")
"""An absolute path of two parts or more, also behind -I, -L and >, and in an address without a host (sqlite:////a/b);
addresses with one do not begin where this begins."""
HOMES = ("home", "Users", "users", "scratch", "work", "export", "nfs", "mnt", "data")
"""Folders whose folders are named after people."""
FILE_URI = re.compile(r"""file://[^\s"'<>,;)\]}]+""")
HIDDEN, PLACE = "<hidden>", "<path>"


def secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values that must be found nowhere, longest first: of variables named like secrets, and passwords in addresses."""
    found: set[str] = set()
    for name, value in environment.items():
        # SSH_AUTH_SOCK, XAUTHORITY: names of files, which are places and not credentials.
        if SECRET.search(name) and not (value.startswith("/") and os.path.lexists(value)):
            found.add(value.strip())
        found |= set(_in_address(value))
    found |= {form for item in found for form in (json.dumps(item)[1:-1], quote(item, safe=""))}  # as files hold it
    return tuple(sorted((item for item in found if len(item) >= SHORTEST), key=lambda item: (-len(item), item)))


def _in_address(value: str) -> Iterable[str]:
    """Passwords of an address, and values of its query whose names look like secrets, as written and as meant."""
    if "://" not in value:
        return
    try:
        parts = urlsplit(value)
        found = [parts.password or ""]
    except ValueError:
        return
    user, at, _ = value.partition("://")[2].rpartition("@")
    found += [user.partition(":")[2]] if at else []  # also where a slash in it ended the address for everybody else
    found += [text for key, text in parse_qsl(parts.query) if SECRET.search(key)]
    found += [text for key, _, text in (part.partition("=") for part in parts.query.split("&")) if SECRET.search(key)]
    for text in found:
        yield from (text, unquote(text)) if text else ()


def masked(text: str) -> str:
    """`text` without the credentials of this process's environment."""
    return Scrubber(secrets(os.environ)).masked(text)


@dataclass(frozen=True, slots=True)
class Scrubber:
    """Takes credentials and places out of text; the same text gives the same answer."""

    hidden: tuple[str, ...] = ()
    """Values to be masked wherever they stand."""
    places: tuple[tuple[str, str], ...] = ()
    """(folder, what it is called instead), the longest first."""

    @classmethod
    def here(cls, environment: Mapping[str, str], places: Mapping[str, str]) -> Scrubber:
        """For this process: its environment's secrets; `places` is folder -> word."""
        known = {os.path.normpath(place): word for place, word in places.items() if len(place) > 1}
        return cls(secrets(environment), tuple(sorted(known.items(), key=lambda item: (-len(item[0]), item[0]))))

    def masked(self, text: str) -> str:
        """`text` without credentials; places stay."""
        text = USERINFO.sub("", text)
        for value in self.hidden:
            text = text.replace(value, HIDDEN)
        return text

    def text(self, text: str) -> str:
        """`text` without them. JSON stays JSON: what is put in needs no escape, and no quote is touched."""
        text = FILE_URI.sub(f"file:{PLACE}", self.masked(text))
        for place, word in self.places:
            text = re.sub(re.escape(place) + r"(?![\w.-])", word, text)
        return ABSOLUTE.sub(_shortened, text)

    def left(self, text: str) -> str:
        """The first thing that should not be in `text`, in words; "" where there is none."""
        if any(value in text for value in self.hidden):
            return "a credential of this environment"
        found = ABSOLUTE.search(text) or FILE_URI.search(text)
        return f"the absolute path {found[0]}" if found else ""


def _shortened(found: re.Match[str]) -> str:
    """The last part of a path says which file it was, and nothing about the machine; somebody's home says nothing."""
    folder, _, name = found[0].strip("/").rpartition("/")
    return PLACE if folder in HOMES else f"{PLACE}/{name}"


def redacted(uri: str) -> str:
    """`uri` without user, password, query and fragment."""
    return re.split("[?#]", USERINFO.sub("", _NO_PORT.sub("", uri)), maxsplit=1)[0]
