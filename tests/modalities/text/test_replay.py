"""Some general text among what is learnt from: which, how much, and that none of it is measured on."""

from __future__ import annotations

import numpy as np
import pytest

from text_corpus import tokenizer, write_corpus
from unmask.errors import UserError
from unmask.modalities.text.network.adapt import adapt, adapt_settings
from unmask.modalities.text.network.pretrain import pretrain
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tokens.batches import Replayed
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.uses.model import load

SMALL = {"width": 32, "layers": 1, "heads": 2, "slots": 32, "vocabulary": 300, "batch_slots": 256, "precision": "fp32"}


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder, words = tmp_path_factory.mktemp("replay"), tokenizer("wordpiece")
    domain = folder / "domain.txt"
    domain.write_text("\n\n".join(f"patient {i} had {i % 7} mg of aspirin for pain." for i in range(300)))
    write_corpus(folder / "general.txt")
    return [
        TokenCache.build(folder / f"{name}.txt", words, folder / name, settings=TextSettings(slots=32, holdout=held))
        for name, held in (("domain", 0.2), ("general", 0.5))
    ]


def test_the_share_asked_for_is_drawn_of_training_examples_alone(caches):
    domain, general = caches
    mixed = Replayed(domain, general, 0.1, seed=0)
    own, other = mixed.train[mixed.train < len(domain)], mixed.train[mixed.train >= len(domain)] - len(domain)
    np.testing.assert_array_equal(own, domain.train)
    assert len(np.unique(other)) == len(other) > 0
    assert np.isin(other, general.train).all()
    slots = mixed.lengths[mixed.train]
    assert slots[len(own) :].sum() / slots.sum() == pytest.approx(mixed.share) == pytest.approx(0.1, abs=0.02)
    again = Replayed(domain, general, 0.1, seed=1)
    assert not np.array_equal(again.train, mixed.train)
    assert again.digest() != mixed.digest() != domain.digest()


def test_examples_of_both_are_found_by_their_numbers(caches):
    domain, general = caches
    mixed = Replayed(domain, general, 0.1, seed=0)
    assert len(mixed) == len(domain) + len(general) == len(mixed.lengths)
    for number in (0, len(domain) - 1, len(domain), len(mixed) - 1):
        cache, own = (domain, number) if number < len(domain) else (general, number - len(domain))
        for found, expected in zip(mixed.example(number), cache.example(own), strict=True):
            np.testing.assert_array_equal(found, expected)
        assert mixed.lengths[number] == len(mixed.example(number)[0])
    np.testing.assert_array_equal(mixed.validation, domain.validation)
    np.testing.assert_array_equal(mixed.frequencies(), domain.frequencies())


def test_where_the_other_is_too_small_all_of_it_is_taken(caches):
    domain, general = caches
    mixed = Replayed(domain, general, 0.99, seed=0)
    assert (mixed.train >= len(domain)).sum() == len(general.train)
    assert mixed.share < 0.99


def test_nothing_to_replay_is_refused(caches):
    domain, general = caches
    with pytest.raises(UserError, match="replay=1e-09: no general text to learn from"):
        Replayed(domain, general, 1e-9, seed=0)


def test_adapting_with_replay_forgets_less(tmp_path, capsys):
    corpus, domain = write_corpus(tmp_path / "general.txt"), tmp_path / "domain.txt"
    domain.write_text("\n\n".join(f"patient {i} had {i % 7} mg of aspirin for pain {i}." for i in range(300)))
    settings = with_overrides(TextSettings(), {**SMALL, "steps": 60, "learning_rate": 3e-3})
    pretrain(str(corpus), tmp_path / "base", settings=settings, console=False)
    lost = {}
    for replay in (0.0, 0.5):
        found = adapt(
            tmp_path / "base",
            str(domain),
            tmp_path / f"adapted-{replay}",
            general=str(corpus),
            replay=replay,
            most_forgetting=100.0,
            settings=adapt_settings(
                {"slots": 32, "batch_slots": 256, "steps": 40, "learning_rate": 3e-3, "patience": None, "holdout": 0.1}
            ),
            console=replay > 0,
        )
        assert found.after["loss"] < found.before["loss"]
        lost[replay] = found.after["general_loss"] - found.before["general_loss"]
    assert lost[0.5] < lost[0.0] - 0.1
    assert "% of what is learnt from is general text (50.0% were asked for)" in capsys.readouterr().err
    assert load(tmp_path / "adapted-0.5").folder.settings["replay"] == 0.5


def test_equal_corpora_do_not_cancel_out(caches):
    domain, general = caches
    assert Replayed(domain, domain, 0.1, seed=0).digest() != Replayed(general, general, 0.1, seed=0).digest()
    ours, theirs = (Replayed(c, c, 0.1, seed=0) for c in caches)
    theirs.train = ours.train
    assert ours.digest() != theirs.digest()


def test_general_text_that_cannot_be_measured_on_is_refused(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.txt", copies=60)
    made = with_overrides(TextSettings(), {**SMALL, "holdout": 0.1, "steps": 1})
    pretrain(str(corpus), tmp_path / "base", settings=made, console=False)
    short = {k: SMALL[k] for k in ("slots", "batch_slots", "precision")} | {"holdout": 0.1, "steps": 1}
    foreign = tmp_path / "foreign.txt"
    for number in range(6):  # a document is learnt from or held out by its content
        (tmp_path / f"{number}.txt").write_text(f"A single short text of a few words, number {number}.")
    foreign.write_text("\n\n".join(f"他是一个很好的学生 {i}" for i in range(60)))
    short_ones = [
        (tmp_path / f"{n}.txt", r"txt: none of it is held out|no general text to learn from") for n in range(6)
    ]
    for general, said in (*short_ones, (foreign, r"foreign\.txt: .* unknown to the")):
        with pytest.raises(UserError, match=said):
            adapt(
                tmp_path / "base",
                str(corpus),
                tmp_path / "out",
                settings=adapt_settings(short),
                general=str(general),
                replay=0.2,
                console=False,
            )


@pytest.mark.parametrize(
    ("given", "said"), [({"replay": 1.0}, "replay=1.0"), ({"replay": 0.1}, "replay=0.1 without general text")]
)
def test_what_cannot_be_replayed_is_refused(tmp_path, given, said):
    with pytest.raises(UserError, match=said):
        adapt(tmp_path / "none", "none.txt", tmp_path / "out", **given)
