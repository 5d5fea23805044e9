"""The simulated user who follows advice knows every kind of it, and meets every kind."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from benchmarks.verdicts.followed import FOLLOWED, SEQUENTIAL, STARTS, Start, advised_scenarios, follow
from benchmarks.verdicts.measure import simulate
from repro.compare.figures import GUIDES, Advice, AdviceKind

KINDS = get_args(AdviceKind)
OPEN: list[AdviceKind] = ["tested", "tested_in_a_contest", "looks_used_up", "not_run_again"]


def test_every_kind_of_advice_that_can_be_printed_is_followed_and_has_a_row() -> None:
    assert set(FOLLOWED) == set(GUIDES) == set(KINDS)
    assert {kind for start in STARTS for kind in start.kinds} == set(KINDS)


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.name)
def test_a_start_leads_to_the_advice_that_its_row_is_about(start: Start) -> None:
    found: set[AdviceKind] = set()
    for seed in range(200):
        found |= set(follow(start, np.random.default_rng(seed))[1])
        if found >= set(start.kinds):
            break
    assert found >= set(start.kinds)


@pytest.mark.parametrize("kind", OPEN)
def test_a_contrast_that_was_tested_gets_no_invitation_to_another_test(kind: AdviceKind) -> None:
    advice = Advice(kind=kind)
    assert (advice.command, FOLLOWED[kind](None, advice, np.random.default_rng(1))) == ("", None)  # type: ignore[arg-type]
    assert advice.words.startswith("report it as undecided")
    assert not any(word in advice.words for word in ("start a new", "repro ", "--", "declare"))


def test_a_command_is_part_of_the_words() -> None:
    assert Advice(kind="more_pairs", n=6).words == (
        "run at least 6 pairs, with new seeds: repro run SUITE --seeds 6")
    assert Advice(kind="own_seeds", n=7).words.endswith("(a program's command takes {seed}), then run at least 7 "
                                                        "pairs: repro run SUITE --seeds 7")


@pytest.mark.slow
def test_a_user_who_ran_again_until_a_verdict_would_break_the_promise() -> None:
    """The rows of advice can fail: the same user, told to run a tested contrast again."""
    start = next(item for item in STARTS if item.name == "10 pairs")
    generator = np.random.default_rng(20151102)
    once, ever = 0, 0
    for _ in range(300):
        words = [follow(start, generator)[0], *(follow(Start("", SEQUENTIAL, ()), generator)[0] for _ in range(3))]
        once, ever = once + (words[0] in ("faster", "slower")), ever + bool({"faster", "slower"} & set(words))
    assert once < 300 * 0.09 < 300 * 0.12 < ever


@pytest.mark.slow
@pytest.mark.parametrize("name", [item.name for item in advised_scenarios()])
def test_followed_advice_errs_in_no_more_than_five_per_cent(name: str) -> None:
    row = simulate(next(item for item in advised_scenarios() if item.name == name), 1000)
    assert row.holds, row.text()
