"""The guard of `adapt --for embedding`: what its search is made of, what it keeps, what it refuses, what it says."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import unmask
from commands import run
from unmask.errors import UserError
from unmask.modalities.text.network.held_out_search import (
    SearchVerdict,
    gains,
    halves,
    held_out_search,
    ranks,
    ranks_by_words,
)
from unmask.modalities.text.network.pretrain import pretrain
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tasks.adapt_embedding import adapt_embedding, embedding_settings
from unmask.modalities.text.tokens.words import with_pairs, words
from unmask.training.run import TrainingRun

TINY = {"width": 32, "layers": 2, "heads": 2, "vocabulary": 400, "slots": 32, "batch_slots": 512, "steps": 2}
SHORT = {
    "slots": 32,
    "batch_slots": 1024,
    "holdout": 0.3,
    "learning_rate": 1e-2,
    "steps": 60,
    "patience": None,
    "validate_every": 20,
    "reconstruct": 0.0,
    "against": "rest",
}
FILLER = ["the", "of", "and", "was", "in", "for", "with", "on", "by", "at", "from", "into", "over", "under"]


def texts(count, seed=0):
    """Texts about two subjects each; the opening and the rest name the same ones."""
    draw = np.random.default_rng(seed)
    names = [
        "".join(draw.choice(list("bdfgklmnprst")) + draw.choice(list("aeiou")) for _ in range(3)) for _ in range(60)
    ]
    made = []
    for number in range(count):
        subjects = draw.choice(names, 2, replace=False)
        parts = [[*draw.choice(FILLER, size), *subjects] for size in (4, 9)]
        made.append(". ".join(" ".join(draw.permutation(part)) for part in parts) + f" {number}.")
    return made


def write(path, lines):
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write(tmp_path_factory.mktemp("corpus") / "domain.jsonl", texts(500))


@pytest.fixture(scope="module")
def base(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("base") / "model"
    pretrain(corpus, out, settings=with_overrides(TextSettings(), TINY | {"lowercase": True}), console=False)
    return out


@pytest.fixture(scope="module")
def better(base, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("better") / "model"
    return out, adapt_embedding(base, corpus, out, settings=embedding_settings(SHORT), console=False)


def test_training_that_helps_is_kept_and_said(better, base):
    out, found = better
    verdict = found.verdict
    assert verdict.helped
    assert verdict.gain.low > 0.05
    assert found.notes()[0].startswith("adaptation helped: nDCG@10 of finding ")
    written = json.loads((out / "unmask.json").read_text())["guard"]
    assert written == found.to_dict()["guard"]
    assert written["kept"] == "adapted"
    assert 0 < written["ndcg@10"]["before"] < written["ndcg@10"]["after"]
    assert "adaptation helped" in (out / "report.html").read_text()


def test_training_that_harms_is_refused_and_the_start_is_written(better, corpus, tmp_path):
    start, _ = better
    harm = embedding_settings({**SHORT, "learning_rate": 0.5, "clip": "none"})
    found = adapt_embedding(start, corpus, tmp_path / "out", settings=harm, console=False)
    assert not found.verdict.helped
    said = found.notes()
    assert said[0].startswith("adaptation did not help")
    assert said[1] == f"{tmp_path / 'out'} holds the weights of the model as it was"
    before, after = load_file(start / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert set(before) == set(after)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    same = [
        unmask.load(folder, precision="fp32").embed(["a text", "and another"]) for folder in (start, tmp_path / "out")
    ]
    assert np.array_equal(*same)


def test_a_start_that_fills_blanks_still_does_where_it_is_kept(base, corpus, tmp_path):
    harm = embedding_settings({**SHORT, "steps": 2, "learning_rate": 1e-12})
    found = adapt_embedding(base, corpus, tmp_path / "out", settings=harm, console=False)
    assert not found.verdict.helped
    assert unmask.load(tmp_path / "out").fill("the [MASK] of")


def test_a_run_that_gets_nowhere_stops_early(better, corpus, tmp_path):
    start, _ = better
    harm = embedding_settings({**SHORT, "learning_rate": 0.5, "clip": "none", "patience": 2, "validate_every": 2})
    result = adapt_embedding(start, corpus, tmp_path / "out", settings=harm, console=False).run.result
    assert result.stopped == "early"
    assert result.steps < 60


def test_a_guarded_run_goes_on_bit_for_bit(base, corpus, tmp_path):
    constant = {**SHORT, "schedule": "constant", "warmup": 0.0, "validate_every": 1}
    for out, steps in (("whole", 4), ("halves", 2), ("halves", 4)):
        settings = embedding_settings({**constant, "steps": steps})
        again = (tmp_path / out).exists()
        found = adapt_embedding(base, corpus, tmp_path / out, settings=settings, resume=again, console=False)
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (
        tmp_path / "halves" / "model.safetensors"
    ).read_bytes()
    assert json.loads((tmp_path / "whole" / "unmask.json").read_text())["guard"] == found.to_dict()["guard"]


def test_the_untrained_weights_are_the_best_until_a_look_is_better(better, corpus, tmp_path, monkeypatch):
    """Killed before the first look, and resumed: what was kept is still the start."""
    start, _ = better
    evaluated = TrainingRun._evaluate

    def end(self, progress):
        raise KeyboardInterrupt

    harm = embedding_settings({**SHORT, "learning_rate": 0.5, "clip": "none", "checkpoint_every": 1, "steps": 30})
    monkeypatch.setattr(TrainingRun, "_evaluate", end)
    with pytest.raises(KeyboardInterrupt):
        adapt_embedding(start, corpus, tmp_path / "out", settings=harm, console=False)
    monkeypatch.setattr(TrainingRun, "_evaluate", evaluated)
    found = adapt_embedding(start, corpus, tmp_path / "out", settings=harm, resume=True, console=False)
    assert found.run.result.kept_step == 0
    assert found.verdict.share == 0


def test_few_texts_are_refused_before_training(base, tmp_path):
    source = write(tmp_path / "few.jsonl", texts(20))
    with pytest.raises(UserError, match=r"of 20 texts are held out.*30 are the fewest") as refused:
        adapt_embedding(base, source, tmp_path / "out", settings=embedding_settings(SHORT), console=False)
    assert "guard=False" in refused.value.hint
    assert not (tmp_path / "out" / "model.safetensors").exists()
    few = embedding_settings({**SHORT, "guard": False, "steps": 1})
    assert adapt_embedding(base, source, tmp_path / "out", settings=few, console=False).verdict is None


def test_a_messy_corpus_is_judged_on_what_is_left(base, tmp_path):
    """Copies but for case, one-sentence texts, boilerplate, blanks."""
    good = texts(300, seed=1)
    messy = [*good, *(t.upper() for t in good[:150]), *("Short one." for _ in range(9)), "", "   "]
    messy += [f"All rights reserved by the publisher of this text. {' '.join(t.split()[::-1])}" for t in good[:40]]
    found = adapt_embedding(
        base, write(tmp_path / "m.jsonl", messy), tmp_path / "out", settings=embedding_settings(SHORT), console=False
    )
    assert 30 <= len(found.verdict.before) <= 100


def test_a_text_in_another_script_is_parted_and_searched():
    text = "今天天气很好，我们去公园散步。公园里有很多花和树，孩子们在湖边玩。"
    assert halves(text) == ("今天天气很好，我们去公园散步。", "公园里有很多花和树，孩子们在湖边玩。")
    assert "公园" in with_pairs(words(text))
    held = [
        f"第{'一二三四五六七八九十'[i % 10]}个故事里有{c}和山水。后来{c}在那里住了很多年才回家。"
        for i, c in enumerate("狼虎猫狗羊马牛鱼鸟虫蛇龙" * 3)
    ]
    made = held_out_search(held, ["别的文章讲的是天气和公园。" * 3])
    assert len(made.judged) == 8
    assert gains(ranks_by_words(made.judged, made.learnt)).mean() > 0.9


@pytest.mark.parametrize(
    ("text", "opening"),
    [
        ("One long sentence without any end goes on and on until its middle is taken as the place to part it",
         "One long sentence without any end goes on and on"),
        ("No. 5 is not an opening of its own. Here the rest begins and it is long enough to be one.",
         "No. 5 is not an opening of its own."),
        ("A heading of the text\nThe rest stands on the next line, and it is long enough to be one.",
         "A heading of the text"),
    ],
)  # fmt: skip
def test_where_a_text_is_parted(text, opening):
    assert halves(text)[0] == opening


def test_no_judged_text_is_chosen_by_or_learnt():
    everything = texts(400)
    made = held_out_search([*everything[:200], everything[250].upper()], everything[200:])
    assert len(made.chosen) == 66
    assert len(made.judged) == 134
    sets = [set(made.chosen.documents), set(made.judged.documents), {halves(t)[1] for t in made.learnt}]
    assert not sets[0] & sets[1]
    assert not (sets[0] | sets[1]) & sets[2]


def test_ties_go_against_the_right_one():
    vectors = np.eye(3)
    assert ranks(vectors, vectors).tolist() == [0, 0, 0]
    assert ranks(np.ones((3, 3)), np.ones((3, 3))).tolist() == [2, 2, 2]
    assert gains(np.array([0, 1, 10])).tolist() == [1.0, 1 / np.log2(3), 0.0]


def test_words_that_find_more_are_named():
    first, last = np.zeros(40, int), np.full(40, 20)
    lines = SearchVerdict(share=1.0, before=last, after=np.ones(40, int), by_words=first).lines("out")
    assert lines[0].startswith("adaptation helped")
    assert "TF-IDF) find more: 1.000 beside 0.631" in lines[1]
    lines = SearchVerdict(share=0.0, before=first, after=first, by_words=last).lines("out")
    assert "no state of the training was better" in lines[0]
    assert lines[2] == "counts of words (TF-IDF): 0.000"


def test_the_command_says_whether_it_helped(base, corpus, tmp_path, capsys):
    sets = [part for key, value in SHORT.items() for part in ("--set", f"{key}={value}")]
    adapting = ["adapt", base, corpus, "--for", "embedding", *sets]
    code, out, _ = run(capsys, *adapting, "--out", tmp_path / "a", "--set", "learning_rate=1e-12", "--set", "steps=2")
    assert code == 0
    assert "adaptation did not help" in out
    assert f"{tmp_path / 'a'} holds the weights of the model as it was" in out
    assert "TF-IDF" in out
    code, out, _ = run(capsys, *adapting, "--out", tmp_path / "b", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["guard"]["helped"] is True
    assert set(found["guard"]["ndcg@10"]) == {"before", "after", "by_words"}


def test_too_few_texts_end_the_command_with_2(base, tmp_path, capsys):
    source = write(tmp_path / "few.jsonl", texts(20))
    code, _, err = run(capsys, "adapt", base, source, "--for", "embedding", "--out", tmp_path / "a")
    assert code == 2
    assert "--set guard=false" in err
