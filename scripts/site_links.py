"""For mkdocs: links that lead out of docs/, to files of the source, become plain text."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Keep links between pages, set the others as text."""
    here = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        path = posixpath.normpath(posixpath.join(here, target.partition("#")[0]))
        return found[0] if files.get_file_from_path(path) is not None else text

    return LINK.sub(link, markdown)
