"""The site: the pages of docs, and those that are made from the source, with a search that needs no network.

    python docs/make/doc_site.py [OUT]        writes site/ (or OUT), with llms.txt and every page as Markdown beside it

The order of the pages is that of the links in each part's index.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

from doc_links import ROOT, broken, links, pages
from doc_reference import first_sentence, made
from verify.draw import redrawn
from verify.remake import figure_of, table_of

MAKE = Path(__file__).parent
BUILD = ROOT / "build" / "docs"
PARTS = {"Tutorials": "tutorials", "How-to": "how-to", "Reference": "reference", "Explanation": "explanation"}


def page_texts() -> dict[str, str]:
    """Path below docs -> text of every page of the site."""
    every = {path: text for path, text in (pages() | made()).items() if path.startswith("docs/")}
    return {path.removeprefix("docs/"): text for path, text in every.items() if not path.startswith("docs/skill/")}


def title(text: str) -> str:
    """The heading of a page."""
    found = re.search(r"^# (.+)$", text, flags=re.M)
    return found[1].replace("`", "") if found else ""


def ordered(texts: dict[str, str]) -> dict[str, list[str]]:
    """Part -> its pages, in the order that its index names them; the pages of other parts, and the start page, stand
    elsewhere."""
    found: dict[str, list[str]] = {}
    for name, folder in PARTS.items():
        index = f"{folder}/index.md"
        named = [_below(folder, target) for target in links(texts[index]) if target.partition("#")[0].endswith(".md")]
        elsewhere = ("index.md", *(f"{other}/" for other in PARTS.values() if other != folder))
        found[name] = list(dict.fromkeys([index, *(p for p in named if p in texts and not p.startswith(elsewhere))]))
    return found


def _below(folder: str, target: str) -> str:
    path = PurePosixPath(folder, target.partition("#")[0]).as_posix()
    return re.sub(r"[^/]+/\.\./", "", path)


def navigation(texts: dict[str, str]) -> str:
    """The pages and their order as a line of zensical.toml."""
    parts = ['{ "Start" = "index.md" }']
    for name, paths in ordered(texts).items():
        inside = ", ".join(
            f'"{path}"' if path.endswith("index.md") else f"{{ {json.dumps(title(texts[path]))} = {json.dumps(path)} }}"
            for path in paths
        )
        parts.append(f"{{ {json.dumps(name)} = [{inside}] }}")
    return f"nav = [{', '.join(parts)}]"


def llms(texts: dict[str, str]) -> str:
    """The pages as https://llmstxt.org has it: a list with a sentence for each."""
    lines = ["# unmask", "", "> " + first_sentence(_plain(texts["index.md"])), ""]
    for name, paths in ordered(texts).items():
        lines += [f"## {name}", ""]
        for path in paths:
            about = first_sentence(_plain(texts[path]))
            lines.append(f"- [{title(texts[path])}]({path})" + (f": {about}" if about else ""))
        lines += [""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """A page's first paragraph, without its heading."""
    body = re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.M | re.S)
    body = re.sub(r"^#.*$", "", body, flags=re.M)
    paragraphs = [p.strip() for p in body.split("\n\n") if p.strip() and p.strip()[0] not in "|-<!"]
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", paragraphs[0]).replace("**", "") if paragraphs else ""


def build(out: Path) -> int:
    """Write the site.

    Returns:
        How many pages it has.
    """
    texts = page_texts()
    wrong = list(broken(pages() | made()))
    if wrong:
        sys.exit("\n".join(wrong))
    shutil.rmtree(BUILD, ignore_errors=True)
    for path, text in texts.items():
        target = BUILD / "docs" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        text = redrawn(text, table_of(ROOT), figure_of(ROOT), place=path)
        target.write_text(for_the_site(path, text), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "pictures", BUILD / "docs" / "pictures", ignore=shutil.ignore_patterns("*.py"))
    for name in ("site.css", "iframe-worker-shim.js"):
        shutil.copy(MAKE / name, BUILD / "docs" / name)
    config = (MAKE / "zensical.toml").read_text().replace("#nav", navigation(texts))
    (BUILD / "zensical.toml").write_text(config)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean"], cwd=BUILD, check=True)
    shutil.rmtree(out, ignore_errors=True)
    shutil.move(BUILD / "site", out)
    (out / "llms.txt").write_text(llms(texts))
    for path, text in texts.items():
        (out / path).write_text(text, encoding="utf-8")
    return len(texts)


def for_the_site(path: str, text: str) -> str:
    """A page without comments, whose links to files that the site does not have are their names alone."""
    text = re.sub(r"<!--[^>]*-->", "", text)  # its line stays, empty: without one a table would end the paragraph

    def replaced(m: re.Match[str]) -> str:
        name, target = m[1], m[2].partition("#")[0]
        inside = not target or target.startswith("http") or not _outside(path, target)
        return m[0] if inside else name

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", replaced, text)


def _outside(path: str, target: str) -> bool:
    found = (ROOT / "docs" / path).parent.joinpath(target).resolve()
    return found.is_relative_to(ROOT / "docs" / "skill") or not found.is_relative_to(ROOT / "docs")


def main() -> int:
    """Build, and say what was built."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site")
    count = build(out)
    print(f"{count} pages in {out}: open {out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
