"""Published checkpoints one may start from, and which to take for a task: data with the reasons beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unmask.errors import UserError

DOMAINS = ("general", "biomedical", "clinical", "scientific", "legal", "finance", "code")
SIZES = {"tiny": 30e6, "small": 100e6, "base": 310e6, "large": 1e9}
"""Most parameters of each size, embeddings included (multilingual tables are most of a base model's)."""


@dataclass(frozen=True)
class PublishedModel:
    """A model on the hub.

    Attributes:
        name: on the hub, where its model card stands.
        paper: that describes it.
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


CHECKPOINTS = (
    PublishedModel(
        "answerdotai/ModernBERT-base",
        "Warner et al. 2024, arXiv:2412.13663",
        "modernbert",
        149e6,
        8192,
        why="long context, fast, code among its texts",
    ),
    PublishedModel(
        "answerdotai/ModernBERT-large",
        "Warner et al. 2024, arXiv:2412.13663",
        "modernbert",
        395e6,
        8192,
        why="the stronger ModernBERT",
    ),
    PublishedModel(
        "jhu-clsp/mmBERT-base",
        "Marone et al. 2025, arXiv:2509.06888",
        "modernbert",
        307e6,
        8192,
        ("*",),
        why="ModernBERT's architecture for some 1 800 languages",
    ),
    PublishedModel(
        "chandar-lab/NeoBERT",
        "Le Breton et al. 2025, arXiv:2502.19587",
        "neobert",
        250e6,
        4096,
        why="a deep, narrow modern encoder",
    ),
    PublishedModel(
        "EuroBERT/EuroBERT-210m",
        "Boizard et al. 2025, arXiv:2503.05500",
        "eurobert",
        212e6,
        8192,
        ("en", "fr", "de", "es", "zh", "it", "ru", "pl", "pt", "ja", "vi", "nl", "ar", "tr", "hi"),
        why="fifteen large languages, long context, code and mathematics",
    ),
    PublishedModel(
        "FacebookAI/xlm-roberta-base",
        "Conneau et al. 2020, arXiv:1911.02116",
        "roberta",
        278e6,
        512,
        ("*",),
        why="a hundred languages, known everywhere",
    ),
    PublishedModel(
        "FacebookAI/roberta-base",
        "Liu et al. 2019, arXiv:1907.11692",
        "roberta",
        125e6,
        512,
        why="a strong, plain baseline",
    ),
    PublishedModel(
        "google-bert/bert-base-uncased",
        "Devlin et al. 2019, arXiv:1810.04805",
        "bert",
        110e6,
        512,
        why="the reference everything is compared with",
    ),
    PublishedModel(
        "google-bert/bert-base-multilingual-cased",
        "Devlin et al. 2019, arXiv:1810.04805",
        "bert",
        178e6,
        512,
        ("*",),
        why="a hundred languages, smaller than XLM-R",
    ),
    PublishedModel(
        "google-bert/bert-base-chinese",
        "Devlin et al. 2019, arXiv:1810.04805",
        "bert",
        102e6,
        512,
        ("zh",),
        why="Chinese by characters",
    ),
    PublishedModel(
        "almanach/camembert-base", "Martin et al. 2020, arXiv:1911.03894", "roberta", 110e6, 512, ("fr",), why="French"
    ),
    PublishedModel(
        "distilbert/distilbert-base-uncased",
        "Sanh et al. 2019, arXiv:1910.01108",
        "distilbert",
        67e6,
        512,
        why="two thirds of BERT at most of its quality",
    ),
    PublishedModel(
        "google/bert_uncased_L-4_H-256_A-4",
        "Turc et al. 2019, arXiv:1908.08962",
        "bert",
        11e6,
        512,
        why="small enough for any machine",
    ),
    PublishedModel(
        "albert/albert-base-v2",
        "Lan et al. 2020, arXiv:1909.11942",
        "albert",
        12e6,
        512,
        why="few parameters to store; as many operations as BERT",
    ),
    PublishedModel(
        "google/electra-small-generator",
        "Clark et al. 2020, arXiv:2003.10555",
        "electra",
        14e6,
        512,
        why="a small masked model",
    ),
    PublishedModel(
        "microsoft/MiniLM-L12-H384-uncased",
        "Wang et al. 2020, arXiv:2002.10957",
        "bert",
        33e6,
        512,
        head=False,
        why="small and quick, for embedding and fine-tuning",
    ),
    PublishedModel(
        "microsoft/mpnet-base",
        "Song et al. 2020, arXiv:2004.09297",
        "mpnet",
        133e6,
        512,
        why="the body of the best known sentence encoders",
    ),
    PublishedModel(
        "microsoft/deberta-v3-base",
        "He et al. 2021, arXiv:2111.09543",
        "deberta",
        184e6,
        512,
        head=False,
        why="best fine-tuning scores of its size; it never was a masked model",
    ),
    PublishedModel(
        "microsoft/deberta-v2-xlarge",
        "He et al. 2021, arXiv:2006.03654",
        "deberta",
        900e6,
        512,
        why="DeBERTa with its masked-LM head",
    ),
    PublishedModel(
        "microsoft/mdeberta-v3-base",
        "He et al. 2021, arXiv:2111.09543",
        "deberta",
        279e6,
        512,
        ("*",),
        head=False,
        why="a hundred languages, for fine-tuning",
    ),
    PublishedModel(
        "allenai/longformer-base-4096",
        "Beltagy et al. 2020, arXiv:2004.05150",
        "longformer",
        149e6,
        4096,
        why="long documents by windows",
    ),
    PublishedModel(
        "google/bigbird-roberta-base",
        "Zaheer et al. 2020, arXiv:2007.14062",
        "bigbird",
        128e6,
        4096,
        why="long documents by blocks",
    ),
    PublishedModel(
        "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext",
        "Gu et al. 2021, arXiv:2007.15779",
        "bert",
        110e6,
        512,
        domain="biomedical",
        why="trained from nothing on PubMed, with its vocabulary",
    ),
    PublishedModel(
        "emilyalsentzer/Bio_ClinicalBERT",
        "Alsentzer et al. 2019, arXiv:1904.03323",
        "bert",
        108e6,
        512,
        domain="clinical",
        why="continued on notes of intensive care",
    ),
    PublishedModel(
        "allenai/scibert_scivocab_uncased",
        "Beltagy et al. 2019, arXiv:1903.10676",
        "bert",
        110e6,
        512,
        domain="scientific",
        why="papers of many fields, with their vocabulary",
    ),
    PublishedModel(
        "nlpaueb/legal-bert-base-uncased",
        "Chalkidis et al. 2020, arXiv:2010.02559",
        "bert",
        110e6,
        512,
        domain="legal",
        why="legislation, cases and contracts",
    ),
    PublishedModel(
        "yiyanghkust/finbert-pretrain",
        "Yang et al. 2020, arXiv:2006.08097",
        "bert",
        110e6,
        512,
        domain="finance",
        why="reports, calls and analysts' notes",
    ),
    PublishedModel(
        "microsoft/codebert-base-mlm",
        "Feng et al. 2020, arXiv:2002.08155",
        "roberta",
        125e6,
        512,
        domain="code",
        why="six programming languages",
    ),
)


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
    return [_told(c, languages, domain, wishes) for c in fits[:most]]


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


def _told(
    c: PublishedModel, languages: tuple[str, ...], domain: str, wishes: Mapping[str, Callable[[PublishedModel], bool]]
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
