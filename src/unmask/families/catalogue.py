"""Published checkpoints one may start from, and which to take for a task: data with the reasons beside it."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UserError

DOMAINS = ("general", "biomedical", "clinical", "scientific", "legal", "finance", "code")
SIZES = {"tiny": 30e6, "small": 100e6, "base": 310e6, "large": 1e9}
"""Most parameters of each size, embeddings included (multilingual tables are most of a base model's)."""


@dataclass(frozen=True)
class PublishedModel:
    """A model on the hub.

    Attributes:
        languages: ISO codes; ("*",) for about a hundred.
        parameters: embeddings included.
        context: tokens.
        head: whether it carries a masked-LM head, so that fill and score work without training one.
    """

    name: str
    paper: str
    family: str
    parameters: float
    context: int
    languages: tuple[str, ...] = ("en",)
    domain: str = "general"
    head: bool = True
    why: str = ""


def _published(row: Mapping[str, str]) -> PublishedModel:
    read: dict[str, Callable[[str], Any]] = {
        "parameters": float,
        "context": int,
        "languages": lambda codes: tuple(codes.split()),
        "head": {"yes": True, "no": False}.__getitem__,
    }
    return PublishedModel(**{name: read.get(name, str)(text) for name, text in row.items()})


with Path(__file__).with_name("checkpoints.csv").open(encoding="utf-8", newline="") as _file:
    CHECKPOINTS = tuple(map(_published, csv.DictReader(_file)))
"""In the order in which they are offered."""


def recommend(
    *,
    languages: tuple[str, ...] = ("en",),
    context: int = 512,
    size: str = "base",
    domain: str = "general",
    head: bool = True,
    most: int = 3,
) -> list[dict[str, Any]]:
    """Checkpoints for a need, best first, each with its reasons, its source and the memory of its weights.

    Args:
        languages: ISO codes that must all be known.
        context: tokens a text may have.
        size: tiny, small, base or large: the most parameters (30 M, 100 M, 310 M, 1 G); never exceeded.
        domain: of the texts. A general checkpoint is offered where none of the domain meets the other wishes.
        head: whether fill and score must work without training a head.

    Returns:
        name, family, source, parameters, context, languages, domain, memory_mb, reasons, and unmet: wishes that it does
        not meet, each with the checkpoint that meets it and what that would cost.
    """
    wishes: dict[str, Callable[[PublishedModel], bool]] = {
        "languages": lambda c: c.languages == ("*",) or set(languages) <= set(c.languages),
        "context": lambda c: c.context >= context,
        "size": lambda c: c.parameters <= SIZES[size],
        "head": lambda c: c.head or not head,
    }
    _check_wishes(languages, context, size, domain)
    fits = [c for c in CHECKPOINTS if c.domain in ("general", domain) and all(wish(c) for wish in wishes.values())]
    if not fits:
        ways = []
        for name in wishes:
            others = [w for n, w in wishes.items() if n != name]
            if found := [c for c in CHECKPOINTS if c.domain in ("general", domain) and all(w(c) for w in others)]:
                best = min(found, key=lambda c: (c.domain != domain, -c.context if name == "context" else c.parameters))
                ways.append(f"without the wish for {name}: {best.name} ({_size(best)}, {best.context} tokens)")
        raise UserError(
            f"no known checkpoint: {'+'.join(languages)}, {context} tokens, at most {SIZES[size] / 1e6:.0f} M "
            f"({size}), {domain}",
            hint="; ".join(ways or ["Several wishes stand in the way: ask for less"])
            + ". Or pretrain: unmask pretrain text.",
        )
    fits.sort(key=lambda c: (c.domain != domain, c.languages == ("*",) and languages == ("en",), CHECKPOINTS.index(c)))
    return [_described(c, domain, wishes) for c in fits[:most]]


def _size(c: PublishedModel) -> str:
    name = next(name for name, most in SIZES.items() if c.parameters <= most)
    return f"{c.parameters / 1e6:.0f} M parameters: {name}"


def _check_wishes(languages: tuple[str, ...], context: int, size: str, domain: str) -> None:
    """Refuse unknown wishes, naming each, and those that are known."""
    wrong = []
    if size not in SIZES:
        wrong.append((f"size {size!r}", f"sizes: {', '.join(SIZES)}"))
    if domain not in DOMAINS:
        wrong.append((f"domain {domain!r}", f"domains: {', '.join(DOMAINS)}"))
    if context < 1:
        wrong.append((f"context {context}", "context: a whole number of tokens, 1 or more"))
    if odd := [code for code in languages if not re.fullmatch(r"[a-z]{2,3}", code)]:
        wrong.append((f"language {', '.join(map(repr, odd))}", "languages: ISO codes such as en,de"))
    if wrong:
        known = "; ".join(k for _, k in wrong)
        raise UserError(f"not known: {', '.join(what for what, _ in wrong)}", hint=f"Known {known}.")


def _described(
    c: PublishedModel, domain: str, wishes: Mapping[str, Callable[[PublishedModel], bool]]
) -> dict[str, Any]:
    unmet = []
    if c.domain != domain:
        own = next((o for o in CHECKPOINTS if o.domain == domain), None)
        failed = [] if own is None else [name for name, wish in wishes.items() if not wish(own)]
        unmet.append(f"domain {domain}: {c.name} is of general text")
        if own is not None:
            shown = f"{_size(own)}, {own.context} tokens, {', '.join(own.languages)}"
            unmet[0] += f"; {own.name} ({shown})" + (
                f" does not meet {' and '.join(failed)}" if failed else " stands above"
            )
    reasons = [c.why, f"{c.context} tokens of context"]
    if c.domain == domain != "general":
        reasons.insert(0, f"of the {domain} domain")
    elif domain != "general":
        reasons.append(f"general text: continue on yours with unmask adapt ({domain})")
    if not c.head:
        reasons.append("no masked-LM head: for embedding and fine-tuning")
    memory = {name: round(c.parameters * width / 1e6) for name, width in (("fp32", 4), ("bf16", 2), ("int8", 1))}
    return {
        "name": c.name,
        "family": c.family,
        "parameters": int(c.parameters),
        "context": c.context,
        "languages": list(c.languages),
        "domain": c.domain,
        "memory_mb": memory,
        "reasons": reasons,
        "source": f"{c.paper}; model card {c.name}",
        "unmet": unmet,
    }
