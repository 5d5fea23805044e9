"""Build the pages of the gallery from its records: `python docs/gallery/build.py [--pictures] [FOLDER]`.

Writes NAME.html for every name of `PAGES` to FOLDER (this folder without it). With `--pictures`, which needs Playwright
and Chromium, also the first screen as NAME.png.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from repro.cli.main import cli

HERE = Path(__file__).parent
RECORDS = HERE / "records"
PAGES = {
    "settled": ("settled.zip",), "same": ("same.zip",), "inconclusive": ("inconclusive.zip",),
    "missed": ("missed.zip",), "factorial": ("factorial.zip",), "scaling": ("scaling.zip",),
    "published": ("mlperf-v4.0",), "speedrun": ("speedrun-2026-06-11",),
    "several": ("several-1.zip", "several-2.zip"), "resumed": ("resumed.zip",),
}
"""Name of a page -> the records that it shows."""


def build(folder: Path) -> list[Path]:
    """Write all pages; return their places."""
    found = []
    for name, records in PAGES.items():
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch, "report")
            places = [str(RECORDS / record) for record in records]
            cli.main(["report", *places, "--out", str(out)], standalone_mode=False)
            page = min(out.rglob("*.html"), key=lambda path: len(path.parts))
            found.append(Path(shutil.copyfile(page, folder / f"{name}.html")))
    return found


def take_pictures(pages: list[Path], out: Path = HERE) -> None:
    """Write the first screen of each page, 1280 by 900, light, in 200 colours: half of the size."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for path in pages:
            page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
            page.goto(path.as_uri())
            page.wait_for_timeout(1500)  # figures are drawn by then
            picture = out / f"{path.stem}.png"
            page.screenshot(path=picture)
            with Image.open(picture) as whole:
                few = whole.convert("RGB").quantize(200, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            few.save(picture, optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--pictures"]
    written = build(Path(words[0]) if words else HERE)
    if "--pictures" in sys.argv:
        take_pictures(written)
