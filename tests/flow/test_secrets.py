"""Credentials are planted in all usual places; then no written byte may contain them.

A real server is tracked to, ranks print their whole environment, one crashes with it in its message, one hangs.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import repro
from repro.core.redact import HIDDEN, Scrubber, masked, redacted, secrets
from repro.record.folder.post_mortem import mask_secrets
from tests.plans import suite
from tests.tracking_server import serving

ROOT = Path(repro.__file__).parents[1]
PLUGINS = ROOT / "tests" / "plugins"
WORDS = {
    name: f"planted{number}Zq8x{name.lower().replace('_', '')}"
    for number, name in enumerate(
        (
            "MLFLOW_TRACKING_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "HF_TOKEN",
            "MY_API_KEY",
            "TORCH_HUB_TOKEN",
            "NCCL_AUTH",
            "DS_PASSPHRASE",
            "DB_PASS",
        )
    )
}
"""Variables by names that look like secrets; some are on the fingerprint's allow-list but for that."""
USER_WORD, QUERY_WORD, ALLOWED_WORD, GIT_WORD = (
    "plantedUserinfoZq8x",
    "plantedQueryZq8x",
    "plantedAllowedZq8x",
    "plantedGitZq8x",
)
HOME_WORD = "plantedHomeZq8x"
"""A place, not a credential: it may be in messages to the user about places, and in no bundle."""


def environment(folder: Path, uri: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "MLFLOW"))}
    return {
        **kept,
        **WORDS,
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HOME": str(folder / HOME_WORD),
        "TORCH_HOME": f"https://ann:{ALLOWED_WORD}@host/x",
        "NCCL_DEBUG_FILE": f"https://h/x?api_key={ALLOWED_WORD}",
        "DATABASE_URL": f"postgresql://u:{GIT_WORD}@db/x",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{PLUGINS}",
        "OMP_NUM_THREADS": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "remote.origin.url",
        "GIT_CONFIG_VALUE_0": f"https://oauth2:{GIT_WORD}@git.example/x.git",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address, and the folder of all that it keeps; what it prints itself, the requests it gets, is not kept."""
    folder = tmp_path_factory.mktemp("server")
    with serving(folder) as site:
        (folder / "log").unlink()
        yield site.uri.removeprefix("http://"), folder


class Place:
    """Commands of one user, and what they printed."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.environment = folder, environment(folder, uri)
        (folder / HOME_WORD).mkdir(exist_ok=True)
        self.printed: dict[str, str] = {}

    def repro(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "repro", *arguments],
            cwd=self.folder,
            env=self.environment,
            text=True,
            capture_output=True,
            timeout=600,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        self.printed[" ".join(arguments)] = done.stdout + done.stderr
        assert done.returncode in codes, (arguments, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr and "internal error" not in done.stderr
        return done.stdout


def forms(word: str) -> list[bytes]:
    """A word as it is, and as base64 would hold it at any of its three alignments."""
    raw = word.encode()
    found = list(dict.fromkeys([raw, quote(word, safe="").encode(), raw.hex().encode()]))
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + raw)
        found.append(text[4 if shift else 0 : -4])
    return found


def contents(path: Path, raw: bytes) -> Iterator[tuple[str, bytes]]:
    """The bytes of a file, and of what is packed in it."""
    yield str(path), raw
    if raw[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            for name in archive.namelist():
                yield from contents(path / name, archive.read(name))
    elif raw[:2] == b"\x1f\x8b":
        yield f"{path} (gzip)", gzip.decompress(raw)
    elif raw[:4] == b"PAR1":
        import pyarrow.parquet as pq

        yield f"{path} (rows)", str(pq.read_table(io.BytesIO(raw)).to_pydict()).encode()
    elif raw[:4] == b"%PDF":
        for part in raw.split(b"stream\n")[1:]:
            try:
                yield f"{path} (stream)", zlib.decompress(part)
            except zlib.error:
                continue


def leaks(places: list[Path], printed: dict[str, str], words: list[str]) -> list[str]:
    """Places that contain one of the words."""
    wanted = [(word, form) for word in words for form in forms(word)]
    found, looked = [], 0
    everything = [(f"printed by {name}", text.encode()) for name, text in printed.items()]
    for place in places:
        for path in sorted(place.rglob("*")):
            name = str(path.relative_to(place))
            if any(word in name for word in words if word != HOME_WORD):
                found.append(f"{name}: its name")
            if path.is_file():
                everything += contents(path, path.read_bytes())
    for name, raw in everything:
        looked += len(raw)
        found += [
            f"{name}: {word}: ...{raw[max(0, raw.index(form) - 60) : raw.index(form) + 60]!r}"
            for word, form in wanted
            if form in raw
        ]
    print(
        f"{len(everything)} files and outputs, {looked:,} bytes looked at for {len(wanted)} forms of {len(words)} words"
    )
    return found


ALL = [*WORDS.values(), USER_WORD, QUERY_WORD, ALLOWED_WORD, GIT_WORD]


def test_the_search_finds_planted_words(tmp_path: Path) -> None:
    word = ALL[0]
    (tmp_path / "plain").write_text(f"x{word}")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(f"y{word}".encode()))
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("b", f"z{word}")
    for shift in range(3):
        (tmp_path / f"coded{shift}").write_bytes(base64.b64encode(b"q" * shift + word.encode() + b"qq"))
    found = leaks([tmp_path], {"it": word}, [word])
    assert len({text.partition(": planted")[0] for text in found}) == 7


@pytest.mark.slow
@pytest.mark.parametrize("form", ["user", "query"])
def test_nothing_that_is_written_holds_a_credential(tmp_path: Path, server: tuple[str, Path], form: str) -> None:
    address, store = server
    uri = f"http://ann:{USER_WORD}@{address}" if form == "user" else f"http://{address}?token={QUERY_WORD}"
    place = Place(tmp_path, uri)
    ungated = {"gate": "{skip: it prints}"}
    for name, engines, code, options in (
        ("run", "{kind: talkative, then: train}", 0, {}),
        ("crashed", "{kind: talkative, then: crash}", 1, ungated),
        ("hung", "{kind: talkative, then: hang}", 1, ungated),
        ("gate", "ddp, {kind: talkative, then: crash}", 1, {}),
    ):
        (tmp_path / HOME_WORD / f"{name}.yaml").write_text(suite(
            "talkative", f"matrix:\n  engine: [{engines}]\n", head="master_seed: 20151102\n", workload="digits-mlp",
            stop="{metric: top1, target: 0.5, max_epochs: 2}", evaluate_every=720, processes=1, warmup_steps="false",
            timeout_seconds=120, stall_seconds=20, **options))
        place.repro("run", f"{HOME_WORD}/{name}.yaml", "--out", name, codes=(code,))
    logs = "".join(path.read_text() for path in tmp_path.rglob("rank0.log"))
    assert logs.count(f"MY_API_KEY={HIDDEN}") >= 4 and "OMP_NUM_THREADS=1" in logs  # they did print it
    crashed, hung = (json.loads(next((tmp_path / name).glob("trials/*/result.json")).read_text())
                     for name in ("crashed", "hung"))
    assert (crashed["status"], hung["status"]) == ("crashed", "hung")
    assert HIDDEN in crashed["reasons"][0]["said"]
    if form == "user":  # an address with a query reaches no server: it is refused, in one line, without the query
        assert b"repro.key" in b"".join(path.read_bytes() for path in store.glob("mlflow.db*"))
    place.repro("report", "run", "--to", "html,markdown,latex,figures,csv,parquet,jsonl,mllog")
    place.repro("report", "run", "--to", "mlflow", codes=(0, 1, 2))
    place.repro("compare", "run", "--json", codes=(0, 2, 3))
    place.repro("audit", "run", "--json", codes=(0, 3))
    place.repro("audit", "nothing-there", "--map", "mapping.yaml", codes=(2,))
    (tmp_path / "mapping.yaml").write_text("cell: [params.engine]\ntime: metrics.tta_wall\n")
    place.repro("audit", "nothing-there", "--map", "mapping.yaml", codes=(1, 2))
    place.repro("verify", "run", "--json", codes=(0, 3))
    place.repro("plan", f"{HOME_WORD}/run.yaml")
    place.repro("doctor", codes=(0, 1))
    place.repro("bundle", "run", "-o", "made.zip")
    place.repro("bundle", "crashed", "-o", "crashed.zip", "--json")
    place.environment["MLFLOW_TRACKING_URI"] = uri.replace(address, "127.0.0.1:9")
    place.repro("report", "run", "--to", "mlflow", codes=(1, 2))
    shutil.rmtree(tmp_path / HOME_WORD / ".cache", ignore_errors=True)
    assert leaks([tmp_path, store], place.printed, ALL) == []
    inside = tmp_path / "unpacked"
    with zipfile.ZipFile(tmp_path / "made.zip") as archive:
        archive.extractall(inside)
    assert leaks([inside], {}, [f"/{HOME_WORD}", str(tmp_path), str(ROOT), sys.prefix]) == []


# ---- the parts, one by one


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://u:secret@h:1/x", "http://h:1/x"),
        ("http://u:sec@ret@h:1/x", "http://h:1/x"),
        ("http://u:se/cret@h:1/x", "http://h:1/x"),
        ("http://h:1/x?token=secret", "http://h:1/x"),
        ("http://h/#secret", "http://h/"),
        ("http://h:5000/a@b", "http://h:5000/a@b"),
        ("sqlite:////tmp/a@b/m.db", "sqlite:////tmp/a@b/m.db"),
        ("http://secret@h", "http://h"),
        ("", ""),
        ("postgresql+psycopg2://u:secret@db:5432/x?password=secret", "postgresql+psycopg2://db:5432/x"),
    ],
)
def test_addresses_are_shown_without_credentials(uri: str, shown: str) -> None:
    assert redacted(uri) == shown


@pytest.mark.parametrize(
    ("uri", "word"),
    [
        ("http://u:plantedpw@h", "plantedpw"),
        ("http://u:plant/edpw@h", "plant/edpw"),
        ("http://u:plant@edpw@h", "plant@edpw"),
        ("http://h?access_token=plantedpw", "plantedpw"),
        ("http://h/?a=1&sig_key=plantedpw", "plantedpw"),
        ("http://u:plan%40tedpw@h", "plan@tedpw"),
        ("http://u:plan%40tedpw@h", "plan%40tedpw"),
    ],
)
def test_whatever_a_library_makes_of_an_address_is_masked(uri: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert word not in masked(f"cannot reach {uri}/api: Max retries (given: {word!r})")


def test_json_is_no_address() -> None:
    text = '{"a":"http://host","mail":"me@there"}'
    assert Scrubber().masked(text) == text


def test_printed_output_of_ranks_is_masked_after_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-key")
    log, other = tmp_path / "rank0.log", tmp_path / "rank1.log"
    log.write_bytes(b"\xff a planted-key and planted-key\nb\n")
    other.write_bytes(b"nothing\n")
    before = other.stat().st_ino
    mask_secrets(tmp_path)
    assert log.read_bytes() == f"\xff a {HIDDEN} and {HIDDEN}\nb\n".encode("latin-1")
    assert other.stat().st_ino == before and sorted(path.name for path in tmp_path.iterdir()) == [
        "rank0.log",
        "rank1.log",
    ]
    assert "planted-key" in secrets(os.environ)
