"""Published checkpoints one may start from, and which to take for a task: data with the reasons beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.errors import UserError

DOMAINS = ("general", "biomedical", "clinical", "scientific", "legal", "finance", "code")
SIZES = {"tiny": 30e6, "small": 100e6, "base": 250e6, "large": 1e9}
"""Most parameters of each size."""


@dataclass(frozen=True)
class Checkpoint:
    """A model on the hub.

    Attributes:
        languages: ISO codes; ("*",) for about a hundred.
        parameters: embeddings included.
        context: tokens.
        head: whether it carries a masked-LM head, so that fill and score work without training one.
    """

    name: str
    family: str
    parameters: float
    context: int
    languages: tuple[str, ...] = ("en",)
    domain: str = "general"
    head: bool = True
    why: str = ""


CHECKPOINTS = (
    Checkpoint("answerdotai/ModernBERT-base", "modernbert", 149e6, 8192, why="long context, fast, trained on 2 T tokens, code among them"),
    Checkpoint("answerdotai/ModernBERT-large", "modernbert", 395e6, 8192, why="the stronger ModernBERT"),
    Checkpoint("jhu-clsp/mmBERT-base", "modernbert", 307e6, 8192, ("*",), why="ModernBERT's architecture for more than a thousand languages"),
    Checkpoint("chandar-lab/NeoBERT", "neobert", 222e6, 4096, why="a deep, narrow modern encoder"),
    Checkpoint("EuroBERT/EuroBERT-210m", "eurobert", 212e6, 8192, ("en", "fr", "de", "es", "zh", "it", "ru", "pl", "pt", "ja", "vi", "nl", "ar", "tr", "hi"), why="fifteen large languages, long context, code and mathematics"),
    Checkpoint("FacebookAI/xlm-roberta-base", "roberta", 278e6, 512, ("*",), why="a hundred languages, known everywhere"),
    Checkpoint("FacebookAI/roberta-base", "roberta", 125e6, 512, why="a strong, plain baseline"),
    Checkpoint("google-bert/bert-base-uncased", "bert", 110e6, 512, why="the reference everything is compared with"),
    Checkpoint("google-bert/bert-base-multilingual-cased", "bert", 178e6, 512, ("*",), why="a hundred languages, smaller than XLM-R"),
    Checkpoint("google-bert/bert-base-chinese", "bert", 102e6, 512, ("zh",), why="Chinese by characters"),
    Checkpoint("almanach/camembert-base", "roberta", 110e6, 512, ("fr",), why="French"),
    Checkpoint("distilbert/distilbert-base-uncased", "distilbert", 67e6, 512, why="two thirds of BERT at most of its quality"),
    Checkpoint("google/bert_uncased_L-4_H-256_A-4", "bert", 11e6, 512, why="small enough for any machine"),
    Checkpoint("albert/albert-base-v2", "albert", 12e6, 512, why="few parameters to store; as many operations as BERT"),
    Checkpoint("google/electra-small-generator", "electra", 14e6, 512, why="a small masked model"),
    Checkpoint("microsoft/MiniLM-L12-H384-uncased", "bert", 33e6, 512, head=False, why="small and quick, for embedding and fine-tuning"),
    Checkpoint("microsoft/mpnet-base", "mpnet", 133e6, 512, why="the body of the best known sentence encoders"),
    Checkpoint("microsoft/deberta-v3-base", "deberta", 184e6, 512, head=False, why="best fine-tuning scores of its size; it never was a masked model"),
    Checkpoint("microsoft/deberta-v2-xlarge", "deberta", 900e6, 512, why="DeBERTa with its masked-LM head"),
    Checkpoint("microsoft/mdeberta-v3-base", "deberta", 279e6, 512, ("*",), head=False, why="a hundred languages, for fine-tuning"),
    Checkpoint("allenai/longformer-base-4096", "longformer", 149e6, 4096, why="long documents by windows"),
    Checkpoint("google/bigbird-roberta-base", "bigbird", 128e6, 4096, why="long documents by blocks"),
    Checkpoint("microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract-fulltext", "bert", 110e6, 512, domain="biomedical", why="trained from nothing on PubMed, with its vocabulary"),
    Checkpoint("emilyalsentzer/Bio_ClinicalBERT", "bert", 108e6, 512, domain="clinical", why="continued on notes of intensive care"),
    Checkpoint("allenai/scibert_scivocab_uncased", "bert", 110e6, 512, domain="scientific", why="papers of many fields, with their vocabulary"),
    Checkpoint("nlpaueb/legal-bert-base-uncased", "bert", 110e6, 512, domain="legal", why="legislation, cases and contracts"),
    Checkpoint("yiyanghkust/finbert-pretrain", "bert", 110e6, 512, domain="finance", why="reports, calls and analysts' notes"),
    Checkpoint("microsoft/codebert-base-mlm", "roberta", 125e6, 512, domain="code", why="six programming languages"),
)  # fmt: skip


def recommend(
    *,
    languages: tuple[str, ...] = ("en",),
    context: int = 512,
    size: str = "base",
    domain: str = "general",
    head: bool = True,
    most: int = 3,
) -> list[dict[str, Any]]:
    """Checkpoints for a need, best first, each with its reasons and the memory of its weights.

    Args:
        languages: ISO codes that must all be known.
        context: tokens a text may have.
        size: tiny, small, base or large: the most parameters (30 M, 100 M, 250 M, 1 G).
        head: whether fill and score must work without training a head.

    Raises:
        UserError: an unknown size or domain, or nothing fits (what came nearest is named).
    """
    if size not in SIZES or domain not in DOMAINS:
        raise UserError(
            f"size={size}, domain={domain}", hint=f"Sizes: {', '.join(SIZES)}; domains: {', '.join(DOMAINS)}."
        )
    fits = [
        c
        for c in CHECKPOINTS
        if (c.languages == ("*",) or set(languages) <= set(c.languages))
        and c.context >= context
        and c.parameters <= SIZES[size] * 1.25
        and c.domain in ("general", domain)
        and (c.head or not head)
    ]
    if not fits:
        raise UserError(
            f"no known checkpoint: {'+'.join(languages)}, {context} tokens, {size}, {domain}",
            hint="Ask for a larger size or a shorter context, or pretrain: unmask pretrain text.",
        )
    fits.sort(key=lambda c: (c.domain != domain, c.languages == ("*",) and languages == ("en",), _order(c)))
    return [_told(c, languages, domain) for c in fits[:most]]


def _order(c: Checkpoint) -> int:
    return CHECKPOINTS.index(c)


def _told(c: Checkpoint, languages: tuple[str, ...], domain: str) -> dict[str, Any]:
    reasons = [c.why, f"{c.context} tokens of context"]
    if c.domain == domain != "general":
        reasons.insert(0, f"of the {domain} domain")
    elif domain != "general":
        reasons.append(f"general text: continue on yours with unmask adapt ({domain})")
    if not c.head:
        reasons.append("no masked-LM head: for embedding and fine-tuning")
    memory = {name: round(c.parameters * width / 1e6) for name, width in (("fp32", 4), ("bf16", 2), ("int8", 1))}
    return {
        "name": c.name, "family": c.family, "parameters": int(c.parameters), "context": c.context,
        "languages": list(c.languages), "domain": c.domain, "memory_mb": memory, "reasons": reasons,
    }  # fmt: skip
