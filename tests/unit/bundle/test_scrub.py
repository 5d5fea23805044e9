"""Credentials and places are taken out of text; figures and JSON are not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.core.redact import ABSOLUTE, Scrubber, secrets
from repro.record.environment.environment import others_sha256, settings

WORLD = {"MLFLOW_TRACKING_URI": "https://ann:s%40crit-word@host.example/api?x=1", "WANDB_API_KEY": "k3y-0123456789",
         "MLFLOW_TRACKING_PASSWORD": 'qu"ote\\d-pass', "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin",
         "SHORT_TOKEN": "1", "TORCH_HOME": "https://u:hunter22@h/x", "NCCL_AUTH_TOKEN": "abcdefgh"}


def test_values_of_names_that_look_like_secrets_and_passwords_in_addresses_are_secrets() -> None:
    found = secrets(WORLD)
    assert {"k3y-0123456789", 'qu"ote\\d-pass', "s%40crit-word", "s@crit-word", "hunter22", "abcdefgh"} <= set(found)
    assert "1" not in found  # a value that short would be found in every figure


@pytest.mark.parametrize("value", sorted(secrets(WORLD)))
def test_none_of_them_is_left_in_any_form(value: str) -> None:
    clean = Scrubber.here(WORLD, {})
    for text in (value, json.dumps({"a": f"x{value}y"}), f"https://ann:{value}@h/x", f"?token={value}&"):
        assert value not in clean.text(text)
        assert clean.left(clean.text(text)) == ""


def test_settings_keep_neither_secret_names_nor_passwords_in_addresses() -> None:
    assert settings(WORLD) == {"OMP_NUM_THREADS": "1", "TORCH_HOME": "https://h/x"}


def test_the_hash_of_the_rest_moves_with_the_rest_and_not_with_secrets_or_sessions() -> None:
    before = others_sha256(WORLD)
    assert others_sha256({**WORLD, "WANDB_API_KEY": "another-one", "SHLVL": "3", "OMP_NUM_THREADS": "4"}) == before
    assert others_sha256({**WORLD, "MALLOC_ARENA_MAX": "1"}) != before


@pytest.mark.parametrize(("text", "after"), [
    ("in /home/ann/x/repro/loop.py line 3", "in <path>/loop.py line 3"),
    ('File "/opt/a b/c.py"', 'File "<path>/a b/c.py"'),
    ("file:///home/ann/mlruns", "file:<path>"),
    ("/run/9/trials/t/rank0.log", "<run>/trials/t/rank0.log"),
    ("A=/usr/lib/x:/usr/lib/y", "A=<path>/x:<path>/y"),
    ("sqlite:////scratch/ann/mlflow.db", "sqlite:<path>/mlflow.db"),
    ("unix:///run/user/7/s", "unix:<path>/s"),
    ("log->/home/ann/x/y, 2>/home/ann/e", "log-><path>/y, 2><path>/e"),
    ("//scratch/ann/z", "<path>/z"),
    ("see /home/ann", "see <path>"),
    ("see /Users/ann/, there", "see <path>, there"),
])
def test_places_go_and_the_last_name_stays(text: str, after: str) -> None:
    assert Scrubber.here({}, {"/run/9": "<run>"}).text(text) == after


@pytest.mark.parametrize("text", ["12 samples/s", "a/b/c", "https://github.com/a/b", "1/2", "/", "n/a", "arXiv:1/2/3",
                                  "bytes/step/rank", "</a/b>", "sqlite:///mlflow.db", "<path>/a/b",
                                  "s3://bucket/a/b"])
def test_text_that_is_no_path_stays(text: str) -> None:
    assert Scrubber.here({}, {}).text(text) == text


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.floats(allow_nan=False), st.integers()), max_size=5))
def test_json_stays_json_and_the_second_time_changes_nothing(data: dict[str, object]) -> None:
    clean = Scrubber.here(WORLD, {"/run/9": "<run>"})
    once = clean.text(json.dumps(data))
    json.loads(once)
    assert clean.text(once) == once
    assert not ABSOLUTE.search(once)
