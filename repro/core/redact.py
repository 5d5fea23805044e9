"""Remove credentials and file system paths from text that leaves the machine.

A credential is the value of an environment variable whose name looks like one (`SECRET`), or the user part of an
address. A credential that a program printed under another name cannot be recognised and stays.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

USERINFO = re.compile(r"""(?<=://)[^/?#\s"'<>]*@""")
"""User part of an address in running text; up to the last @, because some passwords contain one."""
_NO_PORT = re.compile(r"(?<=://)(?![^/:@]*:\d+/)[^/:@]*:[^?#\s]*@")
"""A password with a slash, which is not allowed in an address but occurs."""
SECRET = re.compile(r"(TOKEN|SECRET|PASS|PWD|KEY|CREDENTIAL|AUTH|SIGNATURE)", re.IGNORECASE)
"""Names of variables whose values are secret."""
SHORTEST = 6
"""Shortest credential in characters; replacing shorter values would damage ordinary text."""
_PART = r"""(?:[^\s/"'<>|:,;()\[\]{}\\]|\\u[0-9a-fA-F]{4})"""
_ROOT = r"(?:(?:(?<![\w./<>~:-])|(?<=-[ILB])|(?<=[-=\s\d]>))/+|(?<=:)(?:/(?!/)|/{3,}))"
ABSOLUTE = re.compile(rf"{_ROOT}(?:{_PART}+/)+{_PART}*")
"""An absolute path of two parts or more, also after -I, -L and >, and in an address without a host
(sqlite:////a/b); an address with a host does not match."""
HOMES = ("home", "Users", "users", "scratch", "work", "export", "nfs", "mnt", "data")
"""Folders whose subfolders are named after people."""
FILE_URI = re.compile(r"""file://[^\s"'<>,;)\]}]+""")
HIDDEN, PLACE = "<hidden>", "<path>"


def secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret values, longest first: of variables named like secrets, and passwords in addresses."""
    found: set[str] = set()
    for name, value in environment.items():
        # SSH_AUTH_SOCK, XAUTHORITY: file names, which are paths and not credentials.
        if SECRET.search(name) and not (value.startswith("/") and os.path.lexists(value)):
            found.add(value.strip())
        found |= set(_in_address(value))
    found |= {form for item in found for form in (json.dumps(item)[1:-1], quote(item, safe=""))}  # as files hold it
    return tuple(sorted((item for item in found if len(item) >= SHORTEST), key=lambda item: (-len(item), item)))


def _in_address(value: str) -> Iterable[str]:
    """Yield an address's password, and values of its query named like secrets, as written and unquoted."""
    if "://" not in value:
        return
    try:
        parts = urlsplit(value)
        found = [parts.password or ""]
    except ValueError:
        return
    user, at, _ = value.partition("://")[2].rpartition("@")
    found += [user.partition(":")[2]] if at else []  # also if a slash in it ended the address for other parsers
    found += [text for key, text in parse_qsl(parts.query) if SECRET.search(key)]
    found += [text for key, _, text in (part.partition("=") for part in parts.query.split("&")) if SECRET.search(key)]
    for text in found:
        yield from (text, unquote(text)) if text else ()


def without_users(text: str) -> str:
    """Return `text` without the user parts of addresses; independent of the environment."""
    return USERINFO.sub("", text)


def credential_in(text: str, environment: Mapping[str, str]) -> str:
    """Return which credential `text` holds: a password, or the value of a variable named like a secret; "" if none."""
    if any(_in_address(text)):
        return "a password in an address"
    if not any(value in text for value in secrets(environment)):
        return ""
    return next(f"the value of your variable {name}, which is named like a secret"
                for name, value in environment.items() if any(part in text for part in secrets({name: value})))


def masked(text: str) -> str:
    """Return `text` without the credentials of this process's environment."""
    return Scrubber(secrets(os.environ)).masked(text)


@dataclass(frozen=True, slots=True)
class Scrubber:
    """Removes credentials and paths from text, deterministically."""

    hidden: tuple[str, ...] = ()
    """Values masked at every occurrence."""
    places: tuple[tuple[str, str], ...] = ()
    """(folder, replacement), the longest first."""

    @classmethod
    def here(cls, environment: Mapping[str, str], places: Mapping[str, str]) -> Scrubber:
        """Build a scrubber from the environment's secrets; `places` is folder -> replacement."""
        known = {os.path.normpath(place): word for place, word in places.items() if len(place) > 1}
        return cls(secrets(environment), tuple(sorted(known.items(), key=lambda item: (-len(item[0]), item[0]))))

    def masked(self, text: str) -> str:
        """Return `text` without credentials; paths stay."""
        text = USERINFO.sub("", text)
        for value in self.hidden:
            text = text.replace(value, HIDDEN)
        return text

    def text(self, text: str) -> str:
        """Return `text` without credentials and paths. JSON stays JSON: replacements need no escape, and quotes stay.
        """
        text = FILE_URI.sub(f"file:{PLACE}", self.masked(text))
        for place, word in self.places:
            text = re.sub(re.escape(place) + r"(?![\w.-])", word, text)
        return ABSOLUTE.sub(_shortened, text)

    def left(self, text: str) -> str:
        """Describe the first credential or path left in `text`; "" if there is none."""
        if any(value in text for value in self.hidden):
            return "a credential of this environment"
        found = ABSOLUTE.search(text) or FILE_URI.search(text)
        return f"the absolute path {found[0]}" if found else ""


def _shortened(found: re.Match[str]) -> str:
    """Keep the last part of a path, which names the file and not the machine; drop names of home folders."""
    folder, _, name = found[0].strip("/").rpartition("/")
    return PLACE if folder in HOMES else f"{PLACE}/{name}"


def redacted(uri: str) -> str:
    """Return `uri` without user, password, query and fragment."""
    return re.split("[?#]", USERINFO.sub("", _NO_PORT.sub("", uri)), maxsplit=1)[0]
