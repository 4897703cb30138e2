"""What can be said before `unmask adapt`: how far the domain is from what the model knows, how fast it learns it,
and whether there is anything in it to learn.

From the losses before, the size of the corpus and how much its words say of each other comes what speaks against
adapting for tasks of the domain (`Prospect.doubts`). Where nothing does it still may not help: the few cases that were
measured are in docs/explanation/measured-text-tasks.md. A short run of a few steps, whose weights are thrown away, says
how fast the held-out loss falls; it is shown, and decides nothing.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.training.job import Job
from unmask.training.run import run
from unmask.training.settings import TrainSettings, apply_overrides
from unmask.training.signals import SignalGuard
from unmask.writing import temporary_folder

PROBE_STEPS = 8
"""Steps of the short run."""

PROBE_SHARE = 0.1
"""Of the run's steps, that the short run takes at most: a shorter run is its own probe."""

FEWEST_TOKENS = 200_000
"""Of the training texts, below which they are called few; a rule of thumb, as is the next."""

FURTHER = 0.2
"""Nats by which the loss on the domain is to be above that on general text, for a model that knows its texts."""

KNOWS = 1.0
"""Nats by which a model is to predict the domain better than token shares do, to be said to know its texts. One that
does not has much to learn from them, however little it knows of general text either. Of texts whose shares foresee
them well (few different tokens) nobody can be so far ahead: a quarter of the shares' loss is enough then."""

SAYS_SOMETHING = 0.05
"""Nats by which the word before must help to foresee a word, under counts of pairs; below it texts are called noise.
With three vocabularies: random letters and digits, numbers in tables, names in random order, yes and no by chance and
shuffled English -.40 to .00; English, code, logs and Chinese of 110,000 to 510,000 tokens +.44 to +2.22, but +.07 for
Chinese in a vocabulary without it."""

WORDS = 8192
"""Most frequent words that are told apart in counts of pairs."""

OFTEN = 5
"""Times that a word must occur to be told apart."""

COUNTED = 4_000_000
"""Tokens, about, of which it is counted what follows what."""


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """What is known before adapting.

    Attributes:
        loss: of the model on held-out texts of the domain, in nats per hidden token; None where none is held out.
        by_shares: that of the rule that predicts every token by its share in the domain's training texts.
        general_loss: of the model on general text; None where none was given.
        tokens, documents: of the training texts.
        tokens_per_word: in the domain's held-out texts.
        head: whether the model has a trained masked-LM head.
        probe_gain: nats by which the held-out loss fell in the short run; None where there was none.
        context_gain: nats by which the loss of held-out words is lower when foreseen from the word before, by counts of
            pairs, than by their shares; None where nothing is held out, and of residues or letters. About 0 or below: a
            word says nothing of the next (random letters, numbers, shuffled words), or the texts are too few to tell.
    """

    loss: float | None
    by_shares: float | None
    general_loss: float | None
    tokens: int
    examples: int
    tokens_per_word: float | None
    head: bool
    probe_gain: float | None = None
    context_gain: float | None = None

    @property
    def ahead(self) -> float | None:
        """Nats by which the model predicts the domain better than token shares do; None where nothing is held out."""
        return None if self.loss is None or self.by_shares is None else self.by_shares - self.loss

    @property
    def knows(self) -> bool:
        """Whether the model knows such texts, as far as anything is known of that."""
        if self.ahead is None or self.by_shares is None:
            return True
        return self.ahead >= min(KNOWS, self.by_shares / 4)

    @property
    def doubts(self) -> list[str]:
        """Why adapting is unlikely to help tasks of the domain; none where nothing is known that speaks against it."""
        found = []
        if not self.head:
            found.append("the model has no trained masked-LM head, and learns one first")
        if self.tokens < FEWEST_TOKENS:
            found.append(f"{self.tokens:,} tokens are few ({FEWEST_TOKENS:,} are wanted)")
        elif self.context_gain is not None and self.context_gain < SAYS_SOMETHING:
            found.append(f"in these texts a word says nothing of the next ({self.context_gain:+.2f} nats), as in noise")
        if self.head and self.knows and self.loss is not None and self.general_loss is not None:
            further = self.loss - self.general_loss
            if further < FURTHER:
                how = "nearer to" if further < 0 else "hardly further from"
                found.append(f"these texts are {how} what it knows than the general text is ({further:+.2f} nats)")
        return found

    @property
    def verdict(self) -> str:
        """'unlikely to help'; 'likely to help': the model hardly knows such texts, and there are enough of them; else
        'may help': nothing speaks against it, which is no promise."""
        if self.doubts:
            return "unlikely to help"
        return "may help" if self.knows else "likely to help"

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json and unmask.json."""
        return dataclasses.asdict(self) | {"verdict": self.verdict, "doubts": self.doubts}

    def lines(self) -> list[str]:
        """What people are told before."""
        known = [f"{self.tokens:,} tokens to learn from"]
        if self.tokens_per_word is not None:
            known.append(f"{self.tokens_per_word:.2f} per word")
        if self.loss is not None and self.by_shares is not None:
            known.append(f"held-out loss {self.loss:.2f} nats (by token shares {self.by_shares:.2f})")
        if self.general_loss is not None:
            known.append(f"on general text {self.general_loss:.2f}")
        if self.probe_gain is not None:
            way = "lower" if self.probe_gain >= 0 else "higher"
            known.append(f"{abs(self.probe_gain):.2f} {way} after {PROBE_STEPS} steps")
        spoken = "nothing known before speaks against it, and labels of your own will tell"
        if self.ahead is not None and not self.knows:
            better = "no better than" if self.ahead <= 0 else "hardly better than"
            spoken = f"the model predicts these texts {better} counting tokens would ({self.ahead:+.2f} nats)"
        why = "; ".join(self.doubts) or spoken
        return [
            f"adapting {'' if self.verdict == 'may help' else 'is '}{self.verdict}: {why}",
            f"({', '.join(known)}; a rule of thumb, tested on few cases)",
        ]


def prospect_of(
    cache: TokenCache, tokenizer: Tokenizer, *, loss: float | None, general_loss: float | None, head: bool
) -> Prospect:
    """What the corpus and the losses before say."""
    special = tokenizer.special_ids
    tokens = words = 0
    held: list[np.ndarray] = []
    for number in np.asarray(cache.validation)[:2048]:
        ids, units = cache.example(int(number))
        held.append(ids[~np.isin(ids, special)])
        tokens, words = tokens + int((units >= 0).sum()), words + int(units.max(initial=-1)) + 1
    counts = cache.frequencies(most=16_000_000).astype(float)
    counts[special] = 0
    shares = smoothed(counts)
    ids = np.concatenate(held) if held else np.zeros(0, int)
    inside = len(cache.meta["before"]) + len(cache.meta["after"])
    return Prospect(
        loss=loss,
        by_shares=float(-np.log(shares[ids]).mean()) if len(ids) else None,
        general_loss=general_loss,
        tokens=int((cache.lengths[cache.train] - inside).sum()),
        examples=len(cache.train),
        tokens_per_word=tokens / words if words else None,
        head=head,
        context_gain=context_gain(cache, tokenizer),
    )


def smoothed(counts: np.ndarray) -> np.ndarray:
    """Shares of what was counted, none of them 0: all kinds, seen or not, share what as many as were seen would have
    (Witten and Bell, 1991). Adding one to each would give a large vocabulary too much of a small corpus."""
    kinds = max(int((counts > 0).sum()), 1)
    return np.asarray((counts + kinds / len(counts)) / (counts.sum() + kinds))


def context_gain(cache: TokenCache, tokenizer: Tokenizer, most: int = COUNTED) -> float | None:
    """Nats by which held-out words are foreseen better from the word before than from their shares.

    Words without a letter or a digit are passed over: that a comma follows a number says nothing of the next number.
    Words that occur fewer than `OFTEN` times, or are not among the `WORDS` most frequent, are one and the same. Both
    rules are of counts in the training split; the former is smoothed with the latter as by Witten and Bell (1991): a
    word after which many others were seen leaves more to the shares.

    Args:
        most: about so many tokens are counted.

    Returns:
        The difference of the mean losses; None where no held-out text has two words, or no training text, and of
        residues or letters, each of which is a word here and says little of the next in sound sequences too.
    """
    if tokenizer.by_character:
        return None
    lettered = tokenizer.lettered()
    none = (np.zeros(0, np.uint64), np.zeros(0, np.int64))
    parts = [list(zip(*cache.words(split, lettered, most), strict=True)) for split in (cache.train, cache.validation)]
    (words, example), (held, held_example) = [tuple(map(np.concatenate, part)) if part else none for part in parts]
    kinds, counts = np.unique(words, return_counts=True)
    kinds, counts = kinds[counts >= OFTEN], counts[counts >= OFTEN]
    frequent = np.sort(kinds[np.argsort(-counts, kind="stable")[:WORDS]])
    before, after = neighbours(numbered(words, frequent), example)
    held_before, held_after = neighbours(numbered(held, frequent), held_example)
    if not len(held_after) or not len(after):
        return None
    size = len(frequent) + 1
    shares = smoothed(np.bincount(after, minlength=size))
    pairs, times = np.unique(before * size + after, return_counts=True)
    seen, followers = np.bincount(pairs // size, times, size), np.bincount(pairs // size, minlength=size)
    share, wanted = shares[held_after], held_before * size + held_after
    at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    count = np.where(pairs[at] == wanted, times[at], 0)
    whole = seen[held_before] + followers[held_before]
    foreseen = np.where(whole > 0, (count + followers[held_before] * share) / np.maximum(whole, 1), share)
    return float(np.log(foreseen).mean() - np.log(share).mean())


def numbered(words: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The place of each word among `known`, which are sorted; their number for one that is not among them.

    >>> numbered(np.array([3, 9, 5]), np.array([3, 5])).tolist()
    [0, 2, 1]
    """
    at = np.searchsorted(known, words)
    there = at < len(known)
    there[there] = known[at[there]] == words[there]
    return np.where(there, at, len(known))


def neighbours(words: np.ndarray, example: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(word, the next one) wherever both are in one example.

    >>> [part.tolist() for part in neighbours(np.array([1, 2, 3, 4]), np.array([0, 0, 0, 1]))]
    [[1, 2], [2, 3]]
    """
    together = example[1:] == example[:-1]
    return words[:-1][together], words[1:][together]


def planned_steps(job: Job, train: TrainSettings) -> float:
    """Steps of the run; infinite where the clock ends it."""
    if train.minutes is not None:
        return math.inf
    return train.steps if train.steps is not None else (train.epochs or 1) * job.plan.steps_per_epoch()


def probed(job: Job, train: TrainSettings, loss: float) -> float | None:
    """Nats by which the held-out loss falls in a short run; the model has its weights back afterwards.

    Args:
        loss: before, on all of the job's held-out batches.

    Returns:
        None where the run is too short for a run before it.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM came meanwhile.
    """
    if planned_steps(job, train) * PROBE_SHARE < PROBE_STEPS or not job.validation:
        return None
    start = {name: tensor.detach().cpu().clone() for name, tensor in job.model.state_dict().items()}
    short = apply_overrides(train, {"steps": PROBE_STEPS, "patience": None, "schedule": "constant", "warmup": 0.25})
    once = dataclasses.replace(job, stop_when=None, at_start=None, measure=None, extra_validation=None)
    with temporary_folder() as folder, SignalGuard() as guard:
        result = run(once, Path(folder) / "probe", short, console=False)
    if guard.requested:
        raise KeyboardInterrupt  # nothing is trained yet that could be saved
    job.model.load_state_dict(start)
    return loss - result.validation["validation_loss"]
