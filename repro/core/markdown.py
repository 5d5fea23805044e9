"""Text for Markdown as GitHub renders it."""

from __future__ import annotations

import re

SPECIAL = re.compile(r"[\\`*_\[\]|~$]")
PINGS = re.compile(r"(?<!&)[@#]")
LISTS = re.compile(r"^(?:[-+=]|\d+[.)](?=\s|$))")
NUMBER = "&#35;"


def escaped(text: str) -> str:
    """Escape `text` for Markdown: no markup, HTML, table cell, link, mention or issue.

    Entities hide addresses from GitHub's autolinks. An empty comment separates the sign of a mention or an issue from
    its name; GitHub removes the comment after it has looked for them.
    """
    line = " ".join(text.split())
    line = SPECIAL.sub(r"\\\g<0>", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    line = line.replace("://", "&#58;//").replace("www.", "www&#46;")
    line = PINGS.sub(lambda found: f"{'@' if found[0] == '@' else NUMBER}<!-- -->", line)
    return LISTS.sub(lambda found: f"{found[0][:-1]}&#{ord(found[0][-1])};", line)
