"""Published text settings as data, and the one settings class of `unmask pretrain text` and `adapt`.

No torch import: settings can be read and checked at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from unmask.errors import UserError, option, setting
from unmask.training.settings import (
    TrainSettings,
    apply_run_overrides,
    check_types,
    refuse_unread,
    require,
    require_counts,
    require_shares,
    require_whole_rows,
)


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """What is trained on text. `train` says how long and how fast.

    Attributes:
        recipe: 'modern' (pre-norm, rotary, gated, local/global attention; ModernBERT, Warner et al. 2024) or
            'bert' (post-norm, learned positions; Devlin et al. 2019).
        objective: 'masked' (predict hidden tokens) or 'detection' (tell which tokens a small generator replaced;
            ELECTRA, Clark et al. 2020), for recipe 'bert' in place.
        generator: the generator's share of the discriminator's width ('detection'; section 3.2: a quarter to a half).
        architecture: 'in_place' (mask embeddings in the row) or 'visible_only' (hidden slots dropped, small decoder).
        width, layers: of the encoder. The width is that which learnt most in up to an hour of one core
            (docs/explanation/measured-text.md); for days, or a GPU, take more.
        heads: of attention, None for one per 64 of the width (at width 192 four heads learnt less than three).
        inner: width of the feed-forward, None for the recipe's usual multiple of `width`.
        initial_attention: where heads look before training: 'neighbours', the first (four at most) of the first two
            layers at the slots beside them (`unmask.encoder.local_global`), or 'random'. Recipe 'bert', whose positions
            are learned, always starts at random.
        initial_embeddings: vectors of the tokens before training: 'co_occurrence', counted in the training text, so
            that tokens with like neighbours are near each other (`unmask.core.co_occurrence`), and the head and heads
            that look at neighbours read them; or 'random'. With objective 'detection' they are random.
        slots: slots in a row and the longest example.
        vocabulary: entries of the tokenizer trained on the corpus.
        tokenizer_kind: 'wordpiece', 'bpe' (byte-level) or 'unigram'.
        tokenizer: a tokenizer.json or folder to use instead.
        lowercase: a tokenizer trained on the corpus reads texts in small letters.
        strip_accents: it reads é as e and ö as o. Marks that a script spells with (vowel signs of Hindi, Thai and
            Arabic) stay.
        causal: share of the run, from its start, in which every token is predicted from those before it, and none is
            hidden; what is learnt so is of use when hidden ones are predicted from both sides
            (docs/explanation/measured-text.md; training on both is GPT-BERT's, Charpentier & Samuel 2024).
        ratio: share of the slots to hide.
        ratio_end: the share at the run's end, reached linearly; None keeps `ratio`.
        density: 'fixed': every example hides the share `ratio`. 'uniform': each draws its own, of all of (0, 1), anew
            in every epoch (masked diffusion; `ratio` has no say). 'bell': drawn around `ratio`, which half of them lie
            below (logit-normal, and a tenth of the draws uniform; the idea is that of arXiv 2605.13026).
        spread: standard deviation of the logit of the share ('bell').
        loss_weight: what a hidden slot counts in the loss: 'slot': 1. 'ratio': 1 / the share that its example hides, so
            that examples count alike. 'bound': so that the expected loss is the bound on the likelihood, whatever the
            density; the same as 'ratio' for 'uniform'.
        hide: 'token', 'word' (whole words), 'span' (geometric lengths) or 'entity' (whole words, and whole entities
            where .jsonl rows mark them: "entities", a list of {"start", "end"} in characters).
        rarity: how much more often rare tokens are hidden than frequent ones, for hide 'token': each is drawn with a
            weight of its training count to the power of -`rarity`; 0 hides all alike.
        select: 'package.module:name' of a selector of your own, instead of `hide`; see CONTRIBUTING.md.
        mask, random, keep: what stands in hidden slots, shares that add up to 1; refused with 'visible_only'.
        static: the same masks in every epoch.
        holdout: share of documents held out for validation.
        dropout: on embeddings and block outputs.
        column: text column of jsonl, csv and parquet inputs.
        document: where a document of a .txt file ends: 'blank' (at blank lines), 'line' (at every line's end), 'file'
            (with the file), or 'auto': at blank lines, and at every line's end in a file that has none; what was done
            is said.
        sentences: share of the pieces of documents that are cut into sentences, each an example of its own; all others
            are as long as `slots` lets them be. From sentences a model learns more of grammar and less of long contexts
            (docs/explanation/measured-text.md).
        train: unless given, `learning_rate` is 2e-3 and `batch_slots` 2048, which learnt most in as much time
            (docs/explanation/measured-text.md); recipes 'bert', 'roberta' and 'electra' keep 1e-3. `matrix_rate` is 4,
            so that the rate suits the optimiser 'muon' too.
    """

    recipe: Literal["modern", "bert"] = "modern"
    objective: Literal["masked", "detection"] = "masked"
    generator: float = 0.25
    architecture: Literal["in_place", "visible_only"] = "in_place"
    width: int = 192
    layers: int = 4
    heads: int | None = None
    inner: int | None = None
    initial_attention: Literal["neighbours", "random"] = "neighbours"
    initial_embeddings: Literal["co_occurrence", "random"] = "co_occurrence"
    slots: int = 128
    vocabulary: int = 16384
    tokenizer_kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    tokenizer: str | None = None
    lowercase: bool = False
    strip_accents: bool = False
    causal: float = 0.15
    ratio: float = 0.3
    ratio_end: float | None = 0.15
    density: Literal["fixed", "uniform", "bell"] = "fixed"
    spread: float = 1.0
    loss_weight: Literal["slot", "ratio", "bound"] = "slot"
    hide: Literal["token", "word", "span", "entity"] = "token"
    rarity: float = 0.0
    select: str | None = None
    mask: float = 0.8
    random: float = 0.1
    keep: float = 0.1
    static: bool = False
    holdout: float = 0.01
    dropout: float = 0.0
    column: str | None = None
    document: Literal["auto", "blank", "line", "file"] = "auto"
    sentences: float = 0.0
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(learning_rate=2e-3, matrix_rate=4.0, batch_slots=2048)
    )

    def __post_init__(self) -> None:
        check_types(self)
        require_counts(self, "width", "layers", "heads", "slots", "vocabulary")
        require_shares(self, "causal", "holdout", "dropout")
        require(self, lambda v: 0 <= v <= 1, "a share from 0 to 1", "sentences")
        require(self, lambda v: 0 < v < 1, "a share between 0 and 1, neither included", "ratio", "ratio_end")
        require(self, lambda v: 0 < v <= 1, "a share above 0 and up to 1", "generator")
        require(self, lambda v: v > 0, "a number above 0", "spread")
        require(self, lambda v: v >= 0, "a number, 0 or more", "rarity")
        if self.rarity and (self.hide != "token" or self.select is not None):
            raise UserError(
                f"rarity={self.rarity} with hide={self.hide}, select={self.select}",
                hint="Rare tokens are hidden more often where tokens are hidden one by one "
                f"({setting('hide', 'token')}, no select).",
            )
        idle = {
            "generator": self.objective != "detection" and f"without {setting('objective', 'detection')}",
            "spread": self.density != "bell" and f"without {setting('density', 'bell')}",
            "causal": (self.objective != "masked" and f"with {setting('objective', self.objective)}")
            or (self.architecture != "in_place" and f"with {setting('architecture', self.architecture)}"),
            "hide": self.select is not None and f"with {setting('select', self.select)}",
        }
        for name in (name for name in idle if idle[name] and changed(self, name)):
            raise UserError(
                f"{setting(name, getattr(self, name))} {idle[name]}: nothing reads it", hint="Leave it out."
            )
        if self.architecture == "visible_only":
            replaced = [name for name in ("mask", "random", "keep") if changed(self, name)]
            dropped = setting("architecture", "visible_only")
            refuse_unread(self, replaced, f"with {dropped}, which drops hidden slots")
        alike = self.hide == "token" and self.select is None and not self.rarity
        if self.loss_weight == "bound" and (self.density == "fixed" or not alike):
            raise UserError(
                f"loss_weight=bound with density={self.density}, hide={self.hide}, rarity={self.rarity}, "
                f"select={self.select}",
                hint=f"The bound needs {setting('density', 'uniform')} or bell, and tokens hidden one by one and alike "
                f"({setting('hide', 'token')}, {setting('rarity', 0)}, no select).",
            )
        if self.objective == "detection" and (self.recipe, self.architecture) != ("bert", "in_place"):
            raise UserError(
                f"objective=detection with recipe={self.recipe}, architecture={self.architecture}",
                hint=f"Use {option('recipe', 'electra')}, or {option('recipe', 'bert')} and "
                f"{setting('architecture', 'in_place')}.",
            )
        require_whole_rows(self)

    @property
    def causal_share(self) -> float:
        """`causal`, where hidden tokens are predicted in place."""
        return self.causal if (self.objective, self.architecture) == ("masked", "in_place") else 0.0

    @property
    def attention_heads(self) -> int:
        """`heads`, or as many as there are.

        >>> TextSettings(width=256).attention_heads, TextSettings(width=96).attention_heads
        (4, 1)
        """
        if self.heads is not None:
            return self.heads
        fit = (n for n in range(self.width // 64, 1, -1) if self.width % n == 0 and self.width // n % 2 == 0)
        return next(fit, 1)


BERT = {
    "recipe": "bert",
    "causal": 0.0,
    "ratio": 0.15,
    "ratio_end": None,
    "mask": 0.8,
    "random": 0.1,
    "keep": 0.1,
    "lowercase": True,
    "strip_accents": True,
    "learning_rate": 1e-3,
}
"""Devlin et al. 2019, section 3.1 and appendix A.1, uncased; the rate is one for models of a few million parameters."""

CASED = {"lowercase": False, "strip_accents": False}

ROBERTA = {**BERT, **CASED, "tokenizer_kind": "bpe"}
"""Liu et al. 2019: dynamic masks, byte-level BPE, no next-sentence task."""

ELECTRA = {**BERT, **CASED, "objective": "detection", "mask": 1.0, "random": 0.0, "keep": 0.0}
"""Clark et al. 2020, section 2 and appendix A: 15 % masked, all of them behind [MASK]; loss weight 50."""

MODERN = {"recipe": "modern", "causal": 0.0, "ratio": 0.3, "ratio_end": None, "mask": 1.0, "random": 0.0, "keep": 0.0}
"""Warner et al. 2024 (ratio 0.3) and Wettig et al. 2023 (mask alone does as well as 80/10/10 at higher ratios)."""

DIFFUSION = {
    **MODERN,
    "density": "uniform",
    "loss_weight": "ratio",
}
"""Masked diffusion: shares of all of (0, 1), loss weighted by 1 / share, every hidden token behind [MASK] (Sahoo et al.
2024, MDLM, section 3; Nie et al. 2025, LLaDA, section 2.1). What `unmask generate` draws from."""

RECIPES: dict[str, Mapping[str, Any]] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "electra": ELECTRA,
    "modern": MODERN,
    "diffusion": DIFFUSION,
}


def changed(settings: TextSettings, name: str) -> bool:
    """Whether a setting has neither its default nor what a recipe of this kind of model gives it."""
    recipes = [r for r in RECIPES.values() if r["recipe"] == settings.recipe]
    usual = [getattr(TextSettings, name), *(r[name] for r in recipes if name in r)]
    return getattr(settings, name) not in usual


with_overrides = apply_run_overrides
