"""README and docs: no dead link, every page in the site, the README's examples are the files of examples/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ +(.*?) *$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def dead_links(page: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead to no file or to no heading."""
    found = []
    for target in LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = page.parent / path if path else page
        if place.exists() and (not anchor or place.suffix != ".md"):
            continue
        if not place.exists() or anchor not in anchors(place.read_text(encoding="utf-8") if path else text):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_link_is_dead(page: Path) -> None:
    assert dead_links(page, page.read_text(encoding="utf-8")) == []


def test_dead_links_are_found() -> None:
    text = "# A title\n[a](missing.md) [b](#a-title) [c](#no-title) [d](https://example.org) `[e](code.md)`\n"
    assert dead_links(ROOT / "README.md", text) == ["missing.md", "#no-title"]


def test_every_page_is_in_the_contents_of_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w/-]+\.md", text[text.index("\nnav:"):]))
    made = {"index.md", "reference/commands.md", "reference/suite.md", "reference/plugins.md"}
    assert listed - made == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


def test_the_examples_of_the_readme_are_those_that_are_tested() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for kind, name in (("yaml", "mine.yaml"), ("python", "net.py")):
        (shown,) = re.findall(rf"^```{kind}\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
        assert shown == (ROOT / "examples" / "digits" / name).read_text(encoding="utf-8")
        assert shown.count("\n") <= 20
