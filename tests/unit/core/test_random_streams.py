"""Random streams: named, split by repeat and keys, independent of the order of use, and stable for good."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.core.random_streams import Streams

CALM = settings(max_examples=50, deadline=None, derandomize=True, database=None)


def test_a_stream_depends_on_names_and_keys_only() -> None:
    streams = Streams(7, 0)
    first = streams.generator("order", 3).random(4)
    streams.generator("augmentation", 3).random(100)
    assert np.array_equal(streams.generator("order", 3).random(4), first)
    assert np.array_equal(Streams(7, 0).generator("order", 3).random(4), first)


def test_everything_that_names_a_stream_changes_it() -> None:
    seeds = [
        Streams(master, repeat).seed(name, *keys)
        for master in (0, 7) for repeat in (0, 1) for name in ("init", "order") for keys in ((), (0,), (1,), (0, 0))
    ]
    assert len(set(seeds)) == len(seeds) == 32


def test_numbers_are_those_of_every_earlier_version() -> None:
    # Golden: a record made with another version of this package pairs with a new one only while these hold.
    assert Streams(20151102, 0).seed("init") == 6326125321337187160
    assert Streams(20151102, 0).seed("order", 3, 1) == 7767298453825534561
    assert Streams(20151102, 0).generator("order", 0).permutation(8).tolist() == [0, 6, 4, 1, 7, 2, 5, 3]


@CALM
@given(st.integers(0, (1 << 63) - 1), st.integers(0, 10_000), st.text(max_size=20), st.lists(st.integers(0, 1 << 31)))
def test_seeds_are_integers_below_2_to_the_63(master: int, repeat: int, name: str, keys: list[int]) -> None:
    assert 0 <= Streams(master, repeat).seed(name, *keys) < 1 << 63
