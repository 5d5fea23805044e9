"""Near-duplicates: hashes by their definitions, which images stay, planted copies, the control, bad options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from repro.core.errors import TrialError
from repro.core.random_streams import Streams
from repro.papers.dedup import selection
from repro.papers.dedup.selection import select
from repro.workloads import digits
from repro.workloads.digits import DigitsMlp
from repro.workloads.selected_data import Dedup, Images

pytest.importorskip("imagehash")
SHA = digits.SHA256


def bits(words: np.ndarray, count: int) -> np.ndarray:
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1)[:, :count]


def test_ahash_of_an_image_of_the_hash_s_size_is_pixels_above_the_mean() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    wanted = images > images.mean(axis=(1, 2), keepdims=True)
    assert (bits(selection.hash_images(images, "ahash", 8), 64) == wanted.reshape(20, 64)).all()


def test_distances_are_differing_bits() -> None:
    draw = np.random.default_rng(1)
    some, others = (draw.integers(0, 2**63, (count, 4)).astype(np.uint64) for count in (7, 9))
    wanted = (bits(some, 256)[:, None] != bits(others, 256)[None]).sum(axis=2)
    assert (selection.distances(some, others) == wanted).all()


@pytest.mark.parametrize("threshold", [0, 3, 9])
def test_what_stays_is_apart_and_what_goes_has_a_neighbour_that_stays(threshold: int) -> None:
    draw = np.random.default_rng(2)
    centres = draw.integers(0, 2**63, 40).astype(np.uint64)
    flips = np.uint64(1) << draw.integers(0, 64, (1500, 5)).astype(np.uint64)
    words = centres[draw.integers(0, 40, 1500)] ^ np.bitwise_xor.reduce(flips, axis=1)
    kept = selection.keep_first(words[:, None], threshold)
    far = selection.distances(words[:, None], words[kept][:, None])
    assert (far <= threshold).any(axis=1).all(), "every image is near one that stays"
    assert ((far[kept] <= threshold).sum(axis=1) == 1).all(), "no two that stay are near"
    by_hand: list[int] = []
    for row in range(len(words)):
        if not any((int(words[row]) ^ int(words[other])).bit_count() <= threshold for other in by_hand):
            by_hand.append(row)
    assert kept.tolist() == by_hand


def test_copies_are_found_and_leaks_counted() -> None:
    draw = np.random.default_rng(3)
    images = draw.integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)
    data = Images(np.concatenate([images, images[:10]]), np.concatenate([images[:4], 255 - images[4:9]]), "x", 10)
    found = select(Dedup(hash="phash", threshold=2), data)
    assert (found.samples, found.kept, found.planted_removed, found.leaked) == (60, 50, 10, 4)
    assert (found.recall, found.precision) == (1.0, 1.0)


def test_recall_rises_and_precision_falls_with_the_threshold() -> None:
    found = [DigitsMlp(planted=0.3, dedup=Dedup(threshold=threshold)).selection for threshold in (0, 4, 6, 10, 16)]
    recalls, precisions = [item.recall for item in found], [item.precision for item in found]
    assert all(item is not None for item in (*recalls, *precisions))
    assert [item.kept for item in found] == sorted((item.kept for item in found), reverse=True)
    assert precisions == sorted(precisions, reverse=True)  # type: ignore[type-var]
    assert recalls[0] < 0.1 < 0.6 < recalls[1] < recalls[2] < recalls[3]  # type: ignore[operator]
    assert {item.planted for item in found} == {431}


def test_the_control_leaves_out_as_many_others() -> None:
    near, other = (DigitsMlp(planted=0.3, dedup=Dedup(threshold=6, leave_out=way)).selection
                   for way in ("near", "random"))
    assert near.kept == other.kept
    assert near.sha256 != other.sha256
    assert other.recall is not None and near.recall is not None and other.recall < 0.4 < near.recall


def test_a_workload_trains_on_what_stays_and_says_so() -> None:
    workload = DigitsMlp(hidden=8, planted=0.3, dedup=Dedup(threshold=6))
    parts = workload.build(Streams(0, 0), "cpu")
    assert parts.open_data() == workload.identity().sha256 != SHA
    assert parts.selection is not None and parts.selection() == workload.selection.sha256
    inputs, targets = parts.train_batch(0, np.arange(workload.train_samples))
    assert len(targets) == workload.train_samples == workload.selection.kept < 1437 + 431
    data = digits.verified(SHA, 0.3)
    greys = ((inputs[:, 0].numpy() + 1) * 8).round().astype(np.uint8)
    assert (selection.keep_first(selection.hash_images(greys * 15, "phash", 8), 6) == np.arange(len(greys))).all()
    assert len(data.images) == 1868 and data.eval_images is digits.load().eval_images


def test_other_rows_than_planned_are_refused() -> None:
    right = DigitsMlp(hidden=8, dedup=Dedup(threshold=6))
    planned = right.selection.model_copy(update={"sha256": "0" * 64})
    wrong = DigitsMlp(hidden=8, dedup=Dedup(threshold=6), selected=planned)
    with pytest.raises(TrialError, match="other images stay than in the plan"):
        wrong.build(Streams(0, 0), "cpu").open_data()


def test_a_damaged_store_is_named(store: Path) -> None:
    DigitsMlp(dedup=Dedup(threshold=6)).selection  # noqa: B018  # fills the store
    for place in (store / "duplicates").iterdir():
        place.write_bytes(b"no array")
    with pytest.raises(TrialError, match=r"cannot be read.*delete it"):
        DigitsMlp(dedup=Dedup(threshold=6)).selection  # noqa: B018


@pytest.mark.parametrize(("options", "words"), [
    ({"hash": "whash", "size": 6}, "power of two"), ({"size": 64}, "less than or equal to 32"),
    ({"size": 1}, "greater than or equal to 2"), ({"size": 4, "threshold": 16}, "below the 16 bits"),
    ({"hash": "md5"}, "phash"), ({"leave_out": "all"}, "random"),
])
def test_bad_options_are_told(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Dedup.model_validate(options)


@pytest.mark.slow
def test_sixty_thousand_images_are_hashed_and_compared() -> None:
    images = np.random.default_rng(4).integers(0, 256, (60_000, 32, 32, 3), dtype=np.uint8)
    for kind in ("ahash", "dhash", "phash", "whash"):
        assert len(selection.keep_first(selection.hash_images(images, kind, 8), 4)) > 59_000  # type: ignore[arg-type]
