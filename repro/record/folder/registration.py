"""A plan that is signed before its first trial, so that a trial which is left out of the record later is missed.

Signatures are those of `ssh-keygen -Y`: most people who publish have such a key, and its public half is known.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from repro.core import door
from repro.core.errors import UsageError
from repro.core.files import LATEST_MS, read_bounded, read_model, write_model
from repro.core.frozen import Frozen
from repro.core.machine import Machine
from repro.record.folder.ledger import ADJUSTED_MS
from repro.record.folder.store import RunFolder
from repro.suite.planning.plan import Plan

NAME, SUFFIX = "registration.json", ".sig"
PLANS, BUNDLES = "plan@repro-harness", "bundle@repro-harness"
"""What a signature is for, so that one for a plan is none for a bundle."""
MAX_KEY_BYTES = 1 << 16


class Registration(Frozen):
    """The trials of a plan, stated before the first of them ran."""

    suite: str
    digest: str
    """Of the suite."""
    trials: int
    order_sha256: str
    """Of the trials' ids in their order, one a line."""
    at_ms: float = Field(ge=0, le=LATEST_MS)
    """Wall clock, milliseconds since 1970, as the machine said."""
    machine: str
    """Cores and device of the machine on which the run began."""


def register(folder: RunFolder, plan: Plan, machine: Machine, by: Path) -> str:
    """Write the registration of a run that begins.

    Args:
        by: a private SSH key, or a public one whose private half an agent holds: the registration is signed. Any
            other file gets the registration as its last line, for a place that others can see.

    Returns:
        What was done, in a line.

    Raises:
        UsageError: the key cannot be used, or the file not be written.
    """
    device = f"{machine.device_count} {machine.device}" if machine.device_count else machine.device
    write_model(folder.root / NAME, _of(plan, f"{machine.cores} cores, {device}", time.time() * 1e3))
    text = read_bounded(folder.root / NAME, MAX_KEY_BYTES)
    if is_key(by):
        sign(folder.root / NAME, by, PLANS)
        return f"the plan is signed by {by}: {folder.root / NAME}{SUFFIX}; show it to others before the run ends"
    try:
        with by.open("ab") as stream:
            stream.write(b" ".join(text.split()) + b"\n")
    except OSError as error:
        raise UsageError(f"--register {by}: neither a key nor a file that can be written: {error.strerror}") from error
    return f"the plan is registered in {by}; what is published there before the run ends shows trials left out later"


def _of(plan: Plan, machine: str, at_ms: float) -> Registration:
    names = [trial.trial_id for trial in plan.trials()]
    return Registration(suite=plan.suite.suite, digest=plan.digest, trials=len(names), at_ms=round(at_ms),
                        order_sha256=hashlib.sha256("".join(f"{name}\n" for name in names).encode()).hexdigest(),
                        machine=machine)


def contradiction(root: Path, plan: Plan, started_ms: Sequence[float]) -> str:
    """Return how the registration of a record contradicts its plan or its ledger; "" if it does not.

    Args:
        started_ms: when its trials began; empty if a clock was set, which then orders nothing.

    Raises:
        OutputError: it cannot be read.
    """
    found = read_model(root / NAME, Registration)
    if found != _of(plan, found.machine, found.at_ms):
        return "registers another plan"
    if started_ms and min(started_ms) < found.at_ms - ADJUSTED_MS:
        return f"was made {(found.at_ms - min(started_ms)) / 1e3:.0f} s after the first trial began"
    return ""


def is_listed(root: Path, register: Path) -> bool:
    """Return whether a file, as others have kept it, has the registration of this record as one of its lines.

    Raises:
        OutputError: one of both cannot be read.
    """
    if not (root / NAME).exists():
        return False
    own = b" ".join(read_bounded(root / NAME, MAX_KEY_BYTES).split())
    return any(line.strip() == own for line in read_bounded(register, 1 << 26).splitlines())


# ---- signatures


def is_key(path: Path) -> bool:
    """Return whether a file is an SSH key, private or public."""
    try:
        with path.open("rb") as stream:
            return stream.read(64).startswith((b"-----BEGIN ", b"ssh-", b"ecdsa-", b"sk-"))
    except OSError:
        return False


def sign(path: Path, key: Path, purpose: str) -> Path:
    """Sign a file; the signature is a file beside it, of its name and `SUFFIX`.

    Raises:
        UsageError: the key cannot be used.
    """
    target = path.with_name(path.name + SUFFIX)
    ended = _ssh_keygen(["-Y", "sign", "-f", str(key), "-n", purpose], read_bounded(path, 1 << 30))
    if ended.returncode:
        raise UsageError(f"{key}: cannot sign: {_last(ended.stderr)}")
    with door.open_plain(target, "wb") as stream:
        stream.write(ended.stdout)
    return target


def check_signature(path: Path, signature: Path, key: Path, purpose: str) -> str:
    """Return why a file is not signed by the owner of the public key `key`; "" if it is.

    Raises:
        UsageError: `key` is no public key.
        OutputError: a file cannot be read.
    """
    public = read_bounded(key, MAX_KEY_BYTES).decode("utf-8", "replace").strip()
    if "\n" in public or not public.startswith(("ssh-", "ecdsa-", "sk-")):
        raise UsageError(f"{key}: must be a public SSH key, one line that begins with its kind (id_ed25519.pub)")
    with tempfile.TemporaryDirectory(prefix="repro-signer-") as place:
        known, copied = Path(place) / "signers", Path(place) / "signature"
        known.write_text(f"signer {public}\n", encoding="utf-8")
        copied.write_bytes(read_bounded(signature, MAX_KEY_BYTES))
        ended = _ssh_keygen(["-Y", "verify", "-f", str(known), "-I", "signer", "-n", purpose, "-s", str(copied)],
                            read_bounded(path, 1 << 30))
    return "" if ended.returncode == 0 else (
        f"is no signature by the owner of {key}: {_last(ended.stderr or ended.stdout)}")


def _ssh_keygen(arguments: Sequence[str], given: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["ssh-keygen", *arguments], input=given, capture_output=True, check=False)
    except OSError as error:
        raise UsageError("ssh-keygen is needed for signatures: install openssh-client") from error


def _last(text: bytes) -> str:
    return (text.decode("utf-8", "replace").strip().splitlines() or ["ssh-keygen gave no reason"])[-1][:200]
