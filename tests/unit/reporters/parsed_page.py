"""A rendered report, parsed for tests."""

from __future__ import annotations

import json
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from repro.core import registry
from repro.record.folder.store import Record
from repro.suite.model import Trial
from tests.records import SUITE, Course, make_record


class Page(HTMLParser):
    """A page as tests search it: elements, exact figures, text outside scripts, scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts = "", list[tuple[dict[str, str | None], str]]()
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = tag
            if tag == "script":
                self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif not self._inside:
            self.text += data

    @property
    def values(self) -> set[float]:
        """Every exact figure on the page."""
        return {float(attrs["value"] or "nan") for tag, attrs in self.elements if tag == "data"}

    @property
    def ids(self) -> list[str]:
        return [value for _, attrs in self.elements if (value := attrs.get("id"))]


def render(record: Record, out: Path) -> str:
    (path,) = registry.load("reporter", "html")().write(record, out)
    return Path(path).read_text(encoding="utf-8")


def noisy(trial: Trial) -> Course:
    """Spread by seed, one crash, five misses."""
    generator = random.Random(f"{trial.cell_id} {trial.repeat}")
    engine, processes = trial.choices.engine.kind, trial.choices.processes
    step = 0.02 * (1.15 if engine == "deepspeed" else 1.0) * generator.lognormvariate(0, 0.12) / processes**0.8
    if engine == "deepspeed" and processes == 1 and trial.repeat == 3:
        return Course(step, hits_at=None, crash=True)
    if engine == "deepspeed" and processes == 2 and trial.repeat in (1, 2, 5, 6, 7):
        return Course(step, hits_at=None)
    return Course(step, hits_at=generator.choice([3, 4, 4, 5, 6]))


def uneven(trial: Trial) -> Course:
    """Spread by seed; DeepSpeed on two processes misses three times."""
    generator = random.Random(f"{trial.cell_id} {trial.repeat}")
    step = 0.02 * generator.lognormvariate(0, 0.12) / trial.choices.processes**0.8
    misses = trial.choices.engine.kind == "deepspeed" and trial.choices.processes == 2 and trial.repeat in (1, 2, 5)
    return Course(step, hits_at=None if misses else generator.choice([3, 4, 4, 5, 6]))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("sample") / "run")


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return make_record(tmp_path_factory.mktemp("rough") / "run", SUITE.replace("seeds: 6", "seeds: 8"), noisy)


@pytest.fixture(scope="module")
def page(sample: Record, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(render(sample, tmp_path_factory.mktemp("page")))


def figures(page: Page) -> dict[str, dict[str, Any]]:
    data = [(attrs, text) for attrs, text in page.scripts if attrs.get("type") == "application/json"]
    return {name: json.loads(text) for attrs, text in data if (name := str(attrs["id"])).startswith("curve-")}


def trials_of(figure: dict[str, Any]) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if trace["uid"].startswith("trial-")]
