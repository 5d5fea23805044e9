"""Pages opened in the browser, and what axe-core finds in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VIEWS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
"""Widths and colour schemes in which a page is looked at."""


@contextmanager
def opened(browser: Any, file: Path, width: int = 1280, scheme: str = "light", drawn: bool = False) -> Iterator[Any]:
    """Open a page that is silent and asks nothing of the network; `drawn`: its first figure is there."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(120_000)  # the machine may be at work
    told: list[str] = []
    page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: told.append(request.url)
            if not request.url.startswith(("file:", "data:", "blob:")) else None)
    page.goto(file.as_uri())
    if drawn:
        page.locator(".chart").first.scroll_into_view_if_needed()
        page.wait_for_selector(".chart .trace", state="attached")
    yield page
    page.close()
    assert told == []


def serious(page: Any, axe: str, part: str = "document") -> list[str]:
    """What axe-core calls serious in a part of a page."""
    page.evaluate(axe)  # through the debugger, which the page's policy does not bind
    found = page.evaluate(f"axe.run({part}, {{resultTypes: ['violations']}})")
    return [f"{item['impact']} {item['id']}: {item['nodes'][0]['html'][:200]} ({len(item['nodes'])})"
            for item in found["violations"] if item["impact"] in ("serious", "critical")]
