"""What `adapt` says before it begins, and why it stopped."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from commands import run
from text_corpus import write_corpus
from unmask.modalities.text.network import prospect as prospects
from unmask.modalities.text.network.adapt import adapt, adapt_settings
from unmask.modalities.text.network.pretrain import pretrain
from unmask.modalities.text.network.prospect import Prospect, prospect_of
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.training.validation import Validation

TINY = {"width": 32, "layers": 2, "heads": 2, "vocabulary": 300, "slots": 32, "batch_slots": 256, "steps": 2}
SHORT = {"slots": 32, "batch_slots": 256, "steps": 12, "holdout": 0.2, "learning_rate": 3e-3, "patience": None}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return str(write_corpus(tmp_path_factory.mktemp("corpus") / "domain.txt", copies=120))


@pytest.fixture(scope="module")
def base(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("base") / "model"
    pretrain(corpus, out, settings=with_overrides(TextSettings(), TINY), console=False)
    return out


@pytest.fixture
def short_probe(monkeypatch):
    monkeypatch.setattr(prospects, "PROBE_STEPS", 2)
    monkeypatch.setattr(prospects, "PROBE_SHARE", 0.5)


def test_the_short_run_leaves_no_trace(base, corpus, tmp_path, monkeypatch):
    folders = [tmp_path / "without", tmp_path / "with"]
    without = adapt(base, corpus, folders[0], settings=adapt_settings(SHORT), console=False)
    monkeypatch.setattr(prospects, "PROBE_STEPS", 2)
    monkeypatch.setattr(prospects, "PROBE_SHARE", 0.5)
    found = adapt(base, corpus, folders[1], settings=adapt_settings(SHORT), console=False)
    assert without.prospect.probe_gain is None
    assert found.prospect.probe_gain > 0
    assert (folders[0] / "model.safetensors").read_bytes() == (folders[1] / "model.safetensors").read_bytes()


def test_what_is_known_before(base, corpus, tmp_path, short_probe):
    found = adapt(base, corpus, tmp_path / "out", settings=adapt_settings(SHORT), general=corpus, console=False)
    known = found.prospect
    assert known.head
    assert known.loss == found.before["loss"]
    assert known.general_loss == found.before["general_loss"]
    assert known.tokens_per_word > 1
    assert 0 < known.by_shares < np.log(300)
    assert known.examples > 50 and known.tokens > 20 * known.examples / 2  # noqa: PT018
    written = json.loads((tmp_path / "out" / "unmask.json").read_text())
    assert written["prospect"] == known.to_dict() == found.to_dict()["prospect"]


def test_a_resumed_run_says_what_was_foreseen_at_its_start(base, corpus, tmp_path, short_probe):
    first = adapt(base, corpus, tmp_path / "out", settings=adapt_settings(SHORT), console=False)
    longer = adapt_settings({**SHORT, "steps": 14})
    again = adapt(base, corpus, tmp_path / "out", settings=longer, resume=True, console=False)
    assert again.prospect.probe_gain == first.prospect.probe_gain is not None


def test_a_run_that_only_makes_it_worse_keeps_the_start_and_says_why(base, corpus, tmp_path):
    harm = adapt_settings({**SHORT, "learning_rate": 2.0, "clip": "none", "patience": 2, "validate_every": 1})
    found = adapt(base, corpus, tmp_path / "out", settings=harm, console=False)
    assert found.run.result.kept_step == 0
    said = found.said()
    assert "stopped at step 2: the held-out loss had not fallen for 2 looks; the weights of step 0 are kept" in said
    assert f"adapting did not lower the held-out loss: {tmp_path / 'out'} holds the weights as they were" in said
    before, after = load_file(base / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert found.after == found.before


def test_the_guard_against_forgetting_says_that_it_stopped_the_run(base, corpus, tmp_path):
    harm = adapt_settings({**SHORT, "learning_rate": 2.0, "clip": "none", "validate_every": 1})
    found = adapt(base, corpus, tmp_path / "out", settings=harm, general=corpus, console=False)
    assert any("the loss on general text had risen by more than its limit" in line for line in found.said())
    again = adapt(base, corpus, tmp_path / "out", settings=harm, general=corpus, resume=True, console=False)
    assert again.said()[-2:] == found.said()[-2:]


def test_a_signal_in_the_short_run_before_ends_the_command(base, corpus, tmp_path, short_probe, monkeypatch):
    def looked(self, *args, **more):
        signal.raise_signal(signal.SIGINT)  # during the last look of the short run
        return look(self, *args, **more)

    look = Validation.look
    monkeypatch.setattr(Validation, "look", looked)
    with pytest.raises(KeyboardInterrupt):
        adapt(base, corpus, tmp_path / "out", settings=adapt_settings(SHORT), console=False)
    assert not (tmp_path / "out" / "checkpoints").exists()


def known(**more):
    usual = {"loss": 5.0, "by_shares": 7.0, "general_loss": 4.0, "tokens": 1_000_000, "examples": 9_000}
    return Prospect(**usual | {"tokens_per_word": 1.3, "head": True} | more)


@pytest.mark.parametrize(
    ("more", "doubt"),
    [
        ({"head": False}, "the model has no trained masked-LM head"),
        ({"tokens": 50_000}, "50,000 tokens are few"),
        ({"general_loss": 4.9}, "hardly further from what it knows than the general text is (+0.10 nats)"),
        ({"general_loss": 5.1}, "nearer to what it knows than the general text is (-0.10 nats)"),
    ],
)
def test_doubts_are_named_with_their_numbers(more, doubt):
    assert known().lines()[0].startswith("adapting may help: nothing known before speaks against it")
    assert known(**more).verdict == "unlikely to help"
    assert doubt in known(**more).lines()[0]
    assert "tested on few cases" in known(**more).lines()[1]


def test_a_model_that_knows_neither_text_has_much_to_learn_from_either():
    lost = known(loss=7.02, by_shares=6.66, general_loss=6.98)  # docstrings read medicine; tasks gained by adapting
    assert lost.verdict == "likely to help"
    assert lost.lines()[0].startswith("adapting is likely to help: the model predicts these texts")
    assert "no better than counting tokens would (-0.36 nats)" in lost.lines()[0]
    assert known(loss=6.5, by_shares=7.0, general_loss=6.5).verdict == "likely to help"
    assert known(loss=6.5, by_shares=7.0, general_loss=6.5, tokens=50_000).verdict == "unlikely to help"
    assert known(loss=5.5, by_shares=7.0, general_loss=5.5).verdict == "unlikely to help"


def letters(generator, word):
    return "".join(generator.choice(list("abcdefghijklmnopqrstuvwxyz"), word))


def foreseen(cache, tokenizer):
    return prospect_of(cache, tokenizer, loss=9.0, general_loss=9.0, head=True)


def test_noise_has_nothing_to_be_learnt_though_the_model_knows_none_of_it(base, tmp_path):
    generator = np.random.default_rng(0)
    noise = [" ".join(letters(generator, generator.integers(2, 9)) for _ in range(100)) for _ in range(700)]
    # Words of which each says much of the next, as in any language: the same words, but in runs.
    order = [letters(generator, 5) for _ in range(500)]
    starts = generator.integers(0, 500, (700, 25))
    runs = [" ".join(order[(start + i) % 500] for start in row for i in range(4)) for row in starts]
    numbers = [",".join(f"{value:.2f}" for value in generator.normal(50, 20, 100)) for _ in range(700)]
    chance = [" ".join(generator.choice(["yes", "no"], 200)) for _ in range(1000)]
    tokenizer, found = Tokenizer.load(base), {}
    for name, texts in (("noise", noise), ("numbers", numbers), ("chance", chance), ("runs", runs)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        cache = TokenCache.build(path, tokenizer, tmp_path / f"cache-{name}", max_slots=64, holdout=0.05)
        found[name] = foreseen(cache, tokenizer)
    for name in ("noise", "numbers", "chance"):
        assert found[name].tokens > 200_000
        assert found[name].context_gain < 0.01
        assert found[name].verdict == "unlikely to help"
        assert "a word says nothing of the next" in found[name].lines()[0]
    assert found["runs"].context_gain > 0.3
    assert found["runs"].verdict == "likely to help"


def test_texts_of_a_script_that_the_tokenizer_knows_by_its_bytes_alone_are_no_noise(corpus, tmp_path):
    generator = np.random.default_rng(0)
    tokenizer = Tokenizer.train([Path(corpus).read_text()], kind="bpe", vocab_size=400)
    order = ["".join(generator.choice(list("αβγδεζηθικλμνξοπρστυφχψω"), 5)) for _ in range(500)]
    rows = [
        " ".join(order[(start + i) % 500] for start in generator.integers(0, 500, 25) for i in range(4))
        for _ in range(500)
    ]
    path = tmp_path / "greek.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    cache = TokenCache.build(path, tokenizer, tmp_path / "cache", max_slots=64, holdout=0.05)
    assert prospects.context_gain(cache, tokenizer) > 0.5


def test_of_texts_with_few_different_tokens_nobody_can_be_a_nat_ahead():
    assert known(loss=0.4, by_shares=0.9, general_loss=None).knows
    assert not known(loss=0.8, by_shares=0.9, general_loss=None).knows


def test_nothing_held_out_is_no_reason_to_doubt():
    assert known(loss=None, by_shares=None, general_loss=None, tokens_per_word=None).verdict == "may help"


def test_the_command_says_it_before_and_after(base, corpus, tmp_path, capsys):
    words = ["slots=32", "batch_slots=256", "holdout=0.2", "patience=none"]
    sets = [part for word in words for part in ("--set", word)]
    code, out, err = run(capsys, "adapt", base, corpus, "--out", tmp_path / "a", "--steps", 2, *sets)
    assert code == 0
    assert "adapting is unlikely to help" in err  # before
    assert "before: loss " in err
    assert "tokens are few" in out
    code, out, _ = run(capsys, "adapt", base, corpus, "--out", tmp_path / "b", "--steps", 2, *sets, "--json")
    assert code == 0
    assert json.loads(out)["prospect"]["verdict"] == "unlikely to help"
