"""Failures of a tracking store, recognised in the errors of MLflow, its HTTP and its database layer."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from repro.core.redact import Scrubber, secrets

from .address import is_server


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in one short line without credentials, and the advice for it."""

    text: str
    advice: str = ""
    """Empty: the general advice for the kind of store."""
    transient: bool = False
    """True if it may be over soon."""
    unreachable: bool = False
    """True if no answer came, not even a refusal."""


REFUSED = Failure("the connection is refused", transient=True, unreachable=True)
NO_HOST = Failure("no such host", transient=True, unreachable=True)
NO_ROUTE = Failure("no route to that host", transient=True, unreachable=True)
LATE = Failure("no answer in time", transient=True, unreachable=True)
CUT = Failure("the connection was closed", transient=True)
LOCKED = Failure("the database is locked by another process", "end the other process, or try again", transient=True)
KNOWN = {
    "Connection refused": REFUSED,
    "Name or service not known": NO_HOST,
    "Temporary failure in name resolution": NO_HOST,
    "No route to host": NO_ROUTE,
    "timed out": LATE,
    "RemoteDisconnected": CUT,
    "Connection reset": CUT,
    "Connection aborted": CUT,
    "Connection broken": CUT,
    "IncompleteRead": CUT,
    "Broken pipe": CUT,
    "database is locked": LOCKED,
    "not in a valid JSON format": Failure("the answer is not from an MLflow server"),
    "unable to open database file": Failure("the database cannot be opened"),
    "readonly database": Failure("the database cannot be written"),
    "maintenance mode": Failure("MLflow no longer writes file stores", "set MLFLOW_TRACKING_URI=sqlite:///mlflow.db"),
}
"""Words of an error -> failure."""
CODE = re.compile(r"(?:error code|too many|failed with code|^)\s*(401|403|408|429|5\d\d)\b")
"""An HTTP status in the words of MLflow, urllib3 and requests."""
LOG_IN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
BY_CODE = {
    "401": Failure("it requires a login (401)", LOG_IN),
    "403": Failure("it refuses this user (403)", LOG_IN),
    "408": Failure("it timed out (408)", transient=True),
    "429": Failure("it receives too many requests (429)", "try again later", transient=True),
}
LONGEST = 200


def diagnose(error: BaseException, uri: str) -> Failure:
    """Recognise an error; the text contains no credentials of the address or of the environment."""
    hidden = Scrubber(secrets({**os.environ, "MLFLOW_TRACKING_URI": uri}))
    text = hidden.masked(" ".join(str(error).split()))
    for words, failure in KNOWN.items():
        if words in text:
            return failure
    if code := CODE.search(text):
        server = Failure(f"it fails ({code[1]})", "see the log of the server, or try again later", transient=True)
        return BY_CODE.get(code[1], server)
    short = text if len(text) <= LONGEST else f"{text[:LONGEST - 3]}..."
    return Failure(short, transient=text.startswith("INTERNAL_ERROR"))


def advice(failure: Failure, uri: str) -> str:
    """Return the next step of the user."""
    if failure.advice:
        return failure.advice
    if is_server(uri):
        return "start the server there or correct MLFLOW_TRACKING_URI"
    return "make it writable, or set MLFLOW_TRACKING_URI"
