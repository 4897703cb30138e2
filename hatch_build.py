"""The package's description: README.md, with links and pictures that lead out of the repository made whole.

`UNMASK_PAGES`, as `make release PAGES=https://...` sets it, is the address under which the files of the repository are
read (of a forge, with the branch or tag; `?raw=true` is how forges give a picture itself). Without it a link is the
words that it was on, and a picture is the sentence that says what it shows.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`)*)\]\((?!https?:|#)([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```$)", flags=re.M | re.S)


class Description(MetadataHookInterface):
    """Sets `readme`, which pyproject.toml leaves to this hook."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling when it reads pyproject.toml."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text, os.environ.get("UNMASK_PAGES"))}


def described(text: str, pages: str | None) -> str:
    """README.md as it reads outside the repository.

    Args:
        pages: address of the repository's files, None where they have none.
    """
    text = re.sub(r"^<!--.*?-->\n|<!--.*?-->", "", text, flags=re.M)
    parts = CODE.split(text)
    parts[::2] = [LINK.sub(lambda m: _outside(m, pages), part) for part in parts[::2]]
    return "".join(parts)


def _outside(link: re.Match[str], pages: str | None) -> str:
    picture, words, target = link.groups()
    if pages:
        return f"{picture}[{words}]({pages.rstrip('/')}/{target}{'?raw=true' if picture else ''})"
    return f"*{words}*" if picture else words
