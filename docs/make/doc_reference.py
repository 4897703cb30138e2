"""The pages of the reference that are made from the source: Python, the command line, settings.

    python docs/make/doc_reference.py        how many public names have a docstring

The docstrings are Google's sections in plain text (Args, Attributes, Returns, Raises), with examples that run.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any

from doc_names import MODULES, Name, aliases, all_names, described, handed_out, members, module

SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Yields")
WIDE = 88


@functools.cache
def made() -> dict[str, str]:
    """Path from the root -> text of every page that is made."""
    from doc_commands import command_line
    from doc_guesses import guesses_page
    from doc_settings import settings_page

    pages = {f"python/{place}": module_page(place) for place in MODULES}
    pages |= {
        "names-people-guess": guesses_page(),
        "python/types": types_page(),
        "command-line": command_line(),
        "settings": settings_page(),
    }
    return {f"docs/reference/{name}.md": text for name, text in pages.items()}


def module_page(place: str) -> str:
    """What a public module offers."""
    title = place if place == "unmask" else f"unmask.{place}"
    lines = [f"# {title}", "", rendered(inspect.getdoc(module(place)) or ""), ""]
    names = described(place)
    rows = [f"| [`{n.title}`](#{anchor(n)}) | {_cell(first_sentence(n.documentation))} |" for n in names]
    rows += [f"| `{n}` | the same as {_link(place, *home)} |" for n, home in aliases(place).items()]
    lines += ["| name | |", "|---|---|", *sorted(rows, key=lambda row: row.partition("`")[2].lower()), ""]
    for name in names:
        lines += section(name)
    return "\n".join(lines).rstrip() + "\n"


def types_page() -> str:
    """The classes that public functions take and return."""
    lines = ["# Types that are handed out", "", "What functions and methods of the public modules take and return.", ""]
    for name in handed_out():
        lines += [*section(name)[:2], f"`{name.thing.__module__}.{name.title}`", "", *section(name)[2:]]
    return "\n".join(lines).rstrip() + "\n"


def section(name: Name) -> list[str]:
    """A name with its members."""
    if name.kind == "value":
        return [f"## {name.title}", "", f"`{name.thing!r}`", ""]
    lines = [f"## {name.title}", "", "```python", signature(name), "```", "", rendered(name.documentation), ""]
    for member in members(name):
        lines += [f"### {member.title}", "", "```python", signature(member), "```", "", rendered(member.documentation)]
        lines += [""]
    return lines


def anchor(name: Name) -> str:
    """Of its heading."""
    from doc_links import slug

    return slug(name.title)


def _link(place: str, home: str, name: str) -> str:
    shown = f"unmask.{home}.{name}" if home != "unmask" else f"unmask.{name}"
    page = "" if home == place else f"{home}.md"
    return f"[`{shown}`]({page}#{anchor(Name(name, None, 'value'))})"


def signature(name: Name) -> str:
    """As Python writes it, on several lines where it is long."""
    short = name.title.rpartition(".")[2]
    try:
        found = inspect.signature(name.thing)
    except (TypeError, ValueError):
        return short
    parameters = list(found.parameters.values())
    if name.kind in ("method", "property") and parameters and parameters[0].name in ("self", "cls", "model"):
        parameters = parameters[1:]
    result = f" -> {_hint(found.return_annotation)}" if found.return_annotation is not found.empty else ""
    if name.kind == "property":
        return f"{short}{result.replace(' -> ', ': ')}"
    result = "" if name.kind == "class" else result
    parts, starred, positional = [], False, False
    for p in parameters:
        if p.kind is p.POSITIONAL_ONLY:
            positional = True
        elif positional:
            parts.append("/")
            positional = False
        if p.kind is p.VAR_POSITIONAL:
            starred = True
        if p.kind is p.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        parts.append(_parameter(p))
    one = f"{short}({', '.join(parts)}){result}"
    return one if len(one) <= WIDE else f"{short}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _parameter(p: inspect.Parameter) -> str:
    stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    hint = f": {_hint(p.annotation)}" if p.annotation is not p.empty else ""
    if p.default is p.empty:
        return f"{stars}{p.name}{hint}"
    default = p.default if not callable(p.default) or inspect.isclass(p.default) else "<function>"
    shown = re.sub(r"<factory>|<class '(.*?)'>", r"\1", repr(default)) if default != "<function>" else "..."
    return f"{p.name}{hint}{' = ' if hint else '='}{shown or '...'}"


def _hint(hint: Any) -> str:
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    return re.sub(r"\b(?:typing|collections\.abc|unmask(?:\.\w+)+)\.", "", text.strip("'"))


def first_sentence(text: str) -> str:
    """Of a docstring, on one line."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    found = re.match(r"(.*?\.)(?:\s|$)", paragraph)
    return (found[1] if found else paragraph).rstrip(":")


def _cell(text: str) -> str:
    return escaped(text).replace("|", "\\|")


def escaped(text: str) -> str:
    """Prose with Markdown's signs taken as they are, code between backticks apart."""
    pieces = re.split(r"(`[^`\n]+`)", text)
    return "".join(p if i % 2 else re.sub(r"([*_<\[\]])", r"\\\1", p) for i, p in enumerate(pieces))


def rendered(text: str) -> str:
    """A docstring as Markdown."""
    out: list[str] = []
    blocks = re.split(rf"^({'|'.join(SECTIONS)}):$", text, flags=re.M)
    out.append(_prose(blocks[0]))
    for heading, body in zip(blocks[1::2], blocks[2::2], strict=True):
        inside, behind = _indented(body)
        out += [f"**{heading}**", _items(inside, heading), _prose(behind)]
    return "\n\n".join(part for part in out if part.strip())


def _indented(body: str) -> tuple[str, str]:
    """(the indented part of a section, what stands behind it)."""
    lines = body.strip("\n").split("\n")
    end = next((i for i, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return inspect.cleandoc("\n" + "\n".join(lines[:end])), "\n".join(lines[end:])


def _items(text: str, heading: str) -> str:
    """`name: meaning` lines as a list; a plain paragraph where there are none."""
    entries: list[str] = []
    for line in text.split("\n"):
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        elif line.strip():
            entries.append(line)
    found = [re.match(r"^([\w*.]+(?:, [\w*.]+)*(?: \([^)]*\))?): (.*)$", entry) for entry in entries]
    if heading in ("Returns", "Yields") or not any(found):
        return _prose(text)
    lines = []
    for entry, m in zip(entries, found, strict=True):
        names = ", ".join(f"`{n}`" for n in m[1].split(", ")) if m else ""
        lines.append(f"- {names}: {escaped(m[2])}" if m else f"- {escaped(entry)}")
    return "\n".join(lines)


def _prose(text: str) -> str:
    """Paragraphs, lists, examples and indented code."""
    out = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        plain = inspect.cleandoc("\n" + block)
        if plain.startswith(">>>"):
            out.append(f"```pycon\n{plain}\n```")
        elif block.startswith("    "):
            out.append(f"```text\n{plain}\n```")
        elif plain:
            out.append(escaped(plain))
    return "\n\n".join(out)


def counts() -> tuple[list[str], int]:
    """(the public names without a docstring, how many names there are)."""
    names = all_names()
    return [name.title for name in names if not name.documentation], len(names)


def main() -> int:
    """Print how many public names have a docstring, and those that have none."""
    bare, every = counts()
    print(*bare, sep="\n")
    print(f"{every - len(bare)} of {every} public names have a docstring")
    return bool(bare)


if __name__ == "__main__":
    sys.exit(main())
