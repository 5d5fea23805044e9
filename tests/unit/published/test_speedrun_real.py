"""Real records next to the checkout: every log reads; means, p values and times are scipy's, from another reader."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from repro.published.importing import import_results
from repro.published.speedrun.claims import judge_claims
from repro.published.store import read_published

DATA = Path(os.environ.get("REPRO_SHARED_DATA") or Path(__file__).parents[4] / "shared" / "data") / "speedrun"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no records of the speed-run at {DATA} (REPRO_SHARED_DATA)")
LAST = re.compile(r"^step:(\d+)/\1 val_loss:(\S+) train_time:(\d+)ms", re.MULTILINE)


def test_every_log_gives_scipys_figures(tmp_path: Path) -> None:
    import_results("speedrun", DATA, tmp_path / "out")
    published = read_published(tmp_path / "out")
    claims = judge_claims(published)
    made: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for path in DATA.rglob("*.txt"):
        record, *arm = path.relative_to(DATA).parts[:-1]
        _, loss, milliseconds = LAST.findall(path.read_text())[-1]
        made[record, "/".join(arm) or "this record"].append((float(loss), int(milliseconds) / 1e3))
    assert published.refused == () and len(published.results) == sum(map(len, made.values())) == 62
    assert {(item.record, item.arm) for item in claims.arms} == set(made)
    logs = {}
    for item in claims.arms:
        losses, times = (np.array(column) for column in zip(*made[item.record, item.arm], strict=True))
        logs[item.record, item.arm] = np.log(times)
        assert item.quality.n == item.runs == len(losses)
        assert item.quality.mean == pytest.approx(losses.mean(), abs=1e-9, rel=0)
        assert item.seconds == pytest.approx(times.mean(), abs=1e-9, rel=0)
        if len(losses) == 1:
            assert item.quality.verdict == "cannot be tested" and item.quality.p is None
            continue
        p = stats.ttest_1samp(losses, item.quality.target, alternative="less").pvalue
        assert item.quality.p == pytest.approx(p, abs=1e-9, rel=0)
        bounds = stats.ttest_1samp(times, 0).confidence_interval(0.95)
        assert item.seconds_interval == pytest.approx((bounds.low, bounds.high), abs=1e-9, rel=0)
    for item in claims.arms:
        if item.time.p is not None:
            baseline = next(other.arm for other in claims.arms if other.cell_id == item.time.against)
            welch = stats.ttest_ind(logs[item.record, item.arm], logs[item.record, baseline], equal_var=False)
            bounds = welch.confidence_interval(0.95)
            assert item.time.p == pytest.approx(welch.pvalue, abs=1e-9, rel=0)
            assert item.time.interval == pytest.approx(np.exp([bounds.low, bounds.high]), abs=1e-9, rel=0)
    assert {(item.record[:10], item.time.verdict) for item in claims.arms if item.time.interval} == {
        ("2026-06-11", "faster"), ("2026-07-17", "faster")}


def test_the_longer_track_is_not_held_against_the_shorter(tmp_path: Path) -> None:
    import_results("speedrun", DATA, tmp_path / "out")
    targets = {item.record: item.quality.target for item in judge_claims(read_published(tmp_path / "out")).arms}
    assert targets.pop("2025-09-17_UpdateSmoothing") == 2.92 and set(targets.values()) == {3.28}
