"""Runs on raw text: learning, resume bit for bit after kill -9, two processes as one, adapting, and the folder they
leave."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from text_corpus import tokenizer, write_corpus
from unmask.core.co_occurrence import co_occurrences, factors, information
from unmask.errors import UserError
from unmask.modalities.text.network.adapt import adapt, adapt_settings, start_of
from unmask.modalities.text.network.pretrain import CO_OCCURRENCES, TextPretraining, build_model, pretrain
from unmask.modalities.text.recipes import RECIPES, TextSettings, with_overrides
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.corpus import build_tokenizer
from unmask.modalities.text.tokens.tokenising import is_held_out
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.model import load
from unmask.writing import note_weights

SMALL = {
    "recipe": "bert",
    "width": 32,
    "layers": 2,
    "heads": 2,
    "slots": 32,
    "vocabulary": 300,
    "holdout": 0.1,
    "batch_slots": 256,
    "precision": "fp32",
    "device": "cpu",
    "dropout": 0.1,
    "log_every": 1,
    "learning_rate": 3e-3,
}


SHORT = {k: SMALL[k] for k in ("slots", "holdout", "batch_slots", "precision", "device")}


def settings(**more):
    return with_overrides(TextSettings(), SMALL | more)


def command(corpus, out, **more):
    pairs = [f"{k}={v}" for k, v in (SMALL | more).items()]
    flags = [part for pair in pairs for part in ("--set", pair)]
    return [sys.executable, "-m", "unmask", "pretrain", "text", str(corpus), "--out", str(out), *flags]


def launcher(processes):
    return [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        str(processes),
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--main_process_port",
        "0",
    ]


def one_thread():
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.txt", copies=200)


@pytest.mark.parametrize("architecture", ["in_place", "visible_only"])
@pytest.mark.parametrize("recipe", ["bert", "modern"])
def test_it_learns_and_leaves_a_whole_folder(architecture, recipe, corpus, tmp_path):
    out = tmp_path / "run"
    made = pretrain(
        str(corpus), out, settings=settings(steps=80, recipe=recipe, architecture=architecture), console=False
    )
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    curve = losses(out)
    assert sum(curve[-10:]) < 0.93 * sum(curve[:10])  # it begins with the loss of guessing by frequency
    for name in ("config.json", "model.safetensors", "tokenizer.json", "unmask.json", "report.html"):
        assert (out / name).exists()
    loaded = load(out, precision="fp32")
    assert loaded.folder.random == []
    assert loaded.model.visible_only == (architecture == "visible_only")
    kept = made.result.validation["validation_loss"]
    assert kept == pytest.approx(records[-2]["validation_loss"])


def test_a_model_is_judged_once_it_has_met_a_mask(corpus, tmp_path):
    out = tmp_path / "run"
    made = pretrain(str(corpus), out, settings=settings(steps=8, causal=0.5, validate_every=1, patience=1))
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    looks = [r["step"] for r in records if r["kind"] == "validation"]
    assert looks[0] == 5
    assert made.result.steps > 4
    hidden = [r["hidden_slots"] for r in records if r["kind"] == "train"]
    assert min(hidden[:4]) > 200 > 100 > max(hidden[4:5])
    assert "of each token from those before it in the first 50% of the run" in (out / "report.html").read_text()


def losses(folder):
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [r["loss"] for r in records if r["kind"] == "train"]


@pytest.mark.parametrize("architecture", ["in_place", "visible_only"])
def test_fewer_rows_than_micro_batches_change_nothing(architecture, corpus, tmp_path):
    # An epoch's last step has whatever rows are left: more parts than any step has rows leave some without.
    for parts in (1, 64):
        more = {"steps": 3, "batch_slots": 2048, "dropout": 0.0, "accumulate": parts, "architecture": architecture}
        pretrain(str(corpus), tmp_path / str(parts), settings=settings(**more), console=False)
    assert losses(tmp_path / "1") == pytest.approx(losses(tmp_path / "64"), rel=1e-4)


def test_kill_9_and_resume_gives_the_same_weights_bit_for_bit(corpus, tmp_path):
    more = {"steps": 60, "checkpoint_every": 7}
    subprocess.run(command(corpus, tmp_path / "whole", **more), check=True, env=one_thread(), capture_output=True)
    out = tmp_path / "killed"
    process = subprocess.Popen(
        command(corpus, out, **more), env=one_thread(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not list(out.glob("checkpoints/step-*14/state.json")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "model.safetensors").exists()
    subprocess.run([*command(corpus, out, **more), "--resume"], check=True, env=one_thread(), capture_output=True)
    whole, resumed = load_file(tmp_path / "whole" / "model.safetensors"), load_file(out / "model.safetensors")
    assert all(torch.equal(whole[k], resumed[k]) for k in whole)
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines() if '"train"' in line]
    assert steps == list(range(1, 61))


def test_sigterm_saves_and_leaves(corpus, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(corpus, out, steps=100000), env=one_thread(), stderr=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        (out / "metrics.jsonl").exists() and '"train"' in (out / "metrics.jsonl").read_text()
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM  # `pretrain ... && next` does not go on
    assert b"--resume" in printed
    assert list(out.glob("checkpoints/step-*/state.json"))


def test_two_processes_learn_as_one(corpus, tmp_path):
    # No dropout: its random numbers are each process's own.
    more = {"steps": 12, "dropout": 0.0}
    subprocess.run(command(corpus, tmp_path / "one", **more), check=True, env=one_thread(), capture_output=True)
    # The corpus is prepared by the first process; a second one started at the same time must wait for it.
    done = subprocess.run(
        [*launcher(2), *command(corpus, tmp_path / "two", **more)[1:]], env=one_thread(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    curves = []
    for name in ("one", "two"):
        records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        curves.append([r["loss"] for r in records if r["kind"] == "train"])
        assert records[-1]["kind"] == "end"
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)


def test_another_run_is_not_written_over(corpus, tmp_path):
    pretrain(str(corpus), tmp_path / "run", settings=settings(steps=2), console=False)
    with pytest.raises(UserError, match="already holds a run"):
        pretrain(str(corpus), tmp_path / "run", settings=settings(steps=2), console=False)
    with pytest.raises(UserError, match=r"other data or settings: learning_rate=0.01, was 0.00[0-9]+\n"):
        pretrain(
            str(corpus), tmp_path / "run", settings=settings(steps=4, learning_rate=1e-2), resume=True, console=False
        )
    text = corpus.read_text()
    corpus.write_text(text[len(text) // 2 :] + text[: len(text) // 2])
    there = (tmp_path / "run" / "cache").rglob("*.bin")
    cache = {path: path.read_bytes() for path in there}
    with pytest.raises(UserError, match="the corpus: not the same"):
        pretrain(str(corpus), tmp_path / "run", settings=settings(steps=4), resume=True, console=False)
    with pytest.raises(UserError, match=r"other data or settings: holdout=0\.3, was "):
        pretrain(str(corpus), tmp_path / "run", settings=settings(steps=4, holdout=0.3), resume=True, console=False)
    assert {
        path: path.read_bytes() for path in (tmp_path / "run" / "cache").rglob("*.bin")
    } == cache  # evaluate reads it
    (tmp_path / "run" / "cache" / "meta.json").unlink()  # where there is none, other tokens do not take its place
    with pytest.raises(UserError, match="the corpus: not the same"):
        pretrain(str(corpus), tmp_path / "run", settings=settings(steps=4), resume=True, console=False)
    assert not (tmp_path / "run" / "cache" / "meta.json").exists()
    assert not (tmp_path / "run" / "cache.part").exists()
    corpus.write_text(text)
    moved = corpus.rename(corpus.with_name("renamed.txt"))  # the same tokens under another name
    pretrain(str(moved), tmp_path / "run", settings=settings(steps=4), resume=True, console=False)
    made = load(tmp_path / "run")
    counts = TokenCache.open(tmp_path / "run" / "cache").frequencies()
    counts[made.tokenizer.special_ids] = 0
    assert made.evaluate(["zebra zebra"] * 3)["most_frequent"] == made.tokenizer.token(int(counts.argmax()))


def test_a_run_begun_with_an_earlier_default_says_what_it_was_and_goes_on_with_it(corpus, tmp_path):
    def run(steps, **more):
        small = {k: v for k, v in SMALL.items() if k not in ("recipe", "learning_rate")}
        made = with_overrides(TextSettings(), small | {"steps": steps} | more)
        return pretrain(str(corpus), tmp_path / "run", settings=made, resume=steps > 2, console=False)

    was = {"learning_rate": 1e-3, "batch_slots": 512}
    run(2, **was)
    with pytest.raises(UserError, match=r"batch_slots=256, was 512; learning_rate=0\.002, was 0\.001"):
        run(4)
    assert run(4, **was).result.steps == 4


@pytest.mark.parametrize(
    ("of", "optimiser", "rate"),
    [({}, "adamw", 2e-3), (RECIPES["diffusion"], "adamw", 2e-3), (RECIPES["bert"], "adamw", 1e-3)],
)
def test_the_rate_goes_by_the_recipe_and_suits_either_optimiser(of, optimiser, rate):
    train = with_overrides(TextSettings(), of).train
    assert (train.optimiser, train.learning_rate, train.matrix_rate, train.batch_slots) == (optimiser, rate, 4, 2048)
    for other in ("adamw", "muon"):  # what is given is taken, nothing else moves
        given = with_overrides(with_overrides(TextSettings(), of), {"optimiser": other, "learning_rate": 3e-4}).train
        assert (given.optimiser, given.learning_rate, given.matrix_rate) == (other, 3e-4, 4)
    assert (adapt_settings({}).train.optimiser, adapt_settings({}).train.learning_rate) == ("adamw", 1e-4)


def test_a_tokenizer_left_by_a_run_that_never_began_is_not_taken_for_ours(corpus, tmp_path):
    tokenizer("wordpiece").save(tmp_path / "run")
    pretrain(str(corpus), tmp_path / "run", settings=settings(steps=1), console=False)
    assert Tokenizer.load(tmp_path / "run").vocab_size == 300


def test_the_tokenizer_never_sees_held_out_text(corpus, tmp_path):
    def train(text, name):
        (tmp_path / name).write_text(text, encoding="utf-8")
        build_tokenizer([str(tmp_path / name)], tmp_path / f"{name}-run", settings(), print)
        return Tokenizer.load(tmp_path / f"{name}-run").fingerprint()

    paragraphs = corpus.read_text(encoding="utf-8").split("\n\n")
    kept = [p for p in paragraphs if not is_held_out(p, 0.1, 0)]
    assert len(kept) < len(paragraphs)
    assert train("\n\n".join(paragraphs), "all.txt") == train("\n\n".join(kept), "kept.txt")


def test_a_text_with_too_little_for_the_vocabulary_says_so(corpus, tmp_path):
    def said(vocabulary):
        lines = []
        made = build_tokenizer([str(corpus)], tmp_path / str(vocabulary), settings(vocabulary=vocabulary), lines.append)
        return made.vocab_size, lines

    size, lines = said(5000)
    assert size < 5000
    kept = "case is kept (lowercase=False), accents are kept (strip_accents=False)"
    assert lines == [
        f"training a wordpiece tokenizer of 5000 entries: {kept}",
        f"the text holds enough for {size} of them",
    ]
    assert said(300) == (300, [f"training a wordpiece tokenizer of 300 entries: {kept}"])


@pytest.mark.parametrize(
    ("width", "heads", "decoder"), [(400, 4, (200, 5)), (130, 1, (64, 2)), (134, 1, (66, 2)), (150, 3, (74, 2))]
)
def test_the_decoders_width_is_even_and_its_heads_divide_it(width, heads, decoder):
    chosen = settings(width=width, heads=heads, architecture="visible_only")
    model, _ = build_model(chosen, tokenizer("wordpiece"))
    assert (model.decoder.config.width, model.decoder.config.heads) == decoder
    slots = torch.ones(1, 4, dtype=torch.int64)
    assert model.decoder(torch.zeros(1, 4, decoder[0]), segment=slots, position=torch.arange(4)[None]).shape[-1] > 0


def test_a_folder_that_cannot_be_one_is_refused_before_work(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "unmask.modalities.text.network.pretrain.build_tokenizer", lambda *_, **__: pytest.fail("worked")
    )
    for out in (corpus, corpus / "run"):
        with pytest.raises(UserError, match=r"corpus\.txt is not a folder"):
            pretrain(str(corpus), out, settings=settings(steps=1), console=False)


def test_hiding_entities_needs_entities(corpus, tmp_path):
    with pytest.raises(UserError, match="no entity is marked"):
        pretrain(str(corpus), tmp_path / "run", settings=settings(steps=1, hide="entity"), console=False)


def test_nothing_held_out_stops_nothing_early(corpus, tmp_path):
    base = tmp_path / "base"
    pretrain(str(corpus), base, settings=settings(steps=2), console=False)
    more = {**SHORT, "holdout": 0.0, "steps": 2}
    for needs in (
        {"settings": adapt_settings(more)},
        {"settings": adapt_settings(more | {"patience": None}), "general": str(corpus)},
    ):
        with pytest.raises(UserError, match="nothing is held out") as refused:
            adapt(base, str(corpus), tmp_path / "no", console=False, **needs)
        assert ("general" in str(refused.value.hint)) == ("general" in needs)
    found = adapt(
        base, str(corpus), tmp_path / "yes", settings=adapt_settings(more | {"patience": None}), console=False
    )
    assert found.table() == [("loss", "-", "-"), ("accuracy", "-", "-")]


@pytest.mark.parametrize(
    ("name", "value"), [("width", 64), ("initial_embeddings", "random"), ("initial_attention", "random")]
)
def test_adapting_has_no_settings_of_a_new_model(name, value):
    with pytest.raises(UserError, match=f"{name}={value}: the model to adapt has its own"):
        adapt_settings({name: value})


def test_adapting_a_diffusion_model_goes_on_with_its_objective_and_notes_lengths(corpus, tmp_path):
    from unmask.modalities.text.uses.generating import shown_little
    from unmask.modalities.text.uses.model import load

    plain = settings(steps=1)
    drawn = with_overrides(plain, {"density": "uniform", "loss_weight": "ratio", "ratio_end": None})
    for name, chosen in (("fixed", plain), ("drawn", drawn)):
        pretrain(str(corpus), tmp_path / name, settings=chosen, console=False)
    assert adapt_settings({}, tmp_path / "fixed").density == "fixed"
    went_on = adapt_settings({"steps": 1}, tmp_path / "drawn")
    assert (went_on.density, went_on.loss_weight) == ("uniform", "ratio")
    other = adapt_settings({**SHORT, "steps": 1, "density": "fixed", "loss_weight": "slot"}, tmp_path / "drawn")
    assert other.density == "fixed"
    adapt(tmp_path / "drawn", str(corpus), tmp_path / "once", settings=other, console=False)
    once = load(tmp_path / "once")
    assert len(once.folder.settings["lengths"]) == 101
    assert shown_little(once) is None  # its first run drew shares
    assert adapt_settings({}, tmp_path / "once").density == "fixed"
    given = adapt_settings({"density": "fixed", "ratio": 0.3}, tmp_path / "drawn")
    assert (given.ratio, given.loss_weight) == (0.3, "slot")
    assert adapt_settings({"density": "fixed"}, tmp_path / "drawn").ratio == 0.15
    for idle in ({"ratio": 0.3}, {"ratio": 0.3, "density": "uniform"}):
        with pytest.raises(UserError, match=r"(?s)ratio=0.3: this model draws.*density"):
            adapt_settings(idle, tmp_path / "drawn")
    again = adapt_settings({"density": "uniform", "ratio_end": None}, tmp_path / "drawn")  # as the model says itself
    assert again == adapt_settings({}, tmp_path / "drawn")


def test_adapting_keeps_what_was_hidden_and_how_where_shares_were_drawn(corpus, tmp_path):
    objective = {"density": "bell", "hide": "word", "mask": 1.0, "random": 0.0, "keep": 0.0, "ratio": 0.4}
    chosen = with_overrides(settings(steps=1), objective | {"ratio_end": None})
    pretrain(str(corpus), tmp_path / "run", settings=chosen, console=False)
    found = adapt_settings({"steps": 1}, tmp_path / "run")
    assert {name: getattr(found, name) for name in objective} == objective


@pytest.mark.parametrize(
    ("runs", "kept"),
    [
        (["fixed", "uniform"], "uniform"),  # what comes of it has seen mostly hidden texts, whatever it learns next
        (["uniform", "fixed"], "uniform"),
        (["fixed", "fixed"], "fixed"),
        ([None, "fixed"], None),  # a published model: of its first run nothing is known
        (["uniform"], "uniform"),
        (["fixed"], "fixed"),
    ],
)
def test_a_model_that_ever_drew_the_shares_it_hid_is_known_for_it(runs, kept):
    *first, last = ({} if density is None else {"density": density} for density in runs)
    assert start_of({"text": last, **({"start": first[0]} if first else {})}).get("density") == kept


def test_a_run_is_not_resumed_to_fewer_steps_than_it_has_taken(corpus, tmp_path):
    pretrain(str(corpus), tmp_path / "run", settings=settings(steps=4), console=False)
    ended = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert (json.loads(ended)["kind"], json.loads(ended)["step"]) == ("end", 4)
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has taken 4 steps, and steps=3 asks for fewer"):
        pretrain(str(corpus), tmp_path / "run", settings=settings(steps=3), resume=True, console=False)
    fewer = settings(steps=None, epochs=0.001)
    with pytest.raises(UserError, match=r"has taken 4 steps, and epochs=0.001 \(1 in all\) asks for fewer"):
        pretrain(str(corpus), tmp_path / "run", settings=fewer, resume=True, console=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert (
        pretrain(str(corpus), tmp_path / "run", settings=settings(steps=5), resume=True, console=False).result.steps
        == 5
    )


def test_a_model_of_our_own_is_adapted_at_a_quarter_of_its_rate(corpus, tmp_path):
    pretrain(str(corpus), tmp_path / "base", settings=settings(steps=1, learning_rate=2e-3), console=False)
    base = tmp_path / "base"
    assert adapt_settings({}, base).train.learning_rate == pytest.approx(5e-4)
    assert adapt_settings({"learning_rate": 1e-5}, base).train.learning_rate == 1e-5
    adapt(base, str(corpus), tmp_path / "once", settings=adapt_settings({**SHORT, "steps": 1}, base), console=False)
    assert adapt_settings({}, tmp_path / "once").train.learning_rate == pytest.approx(5e-4)
    about = json.loads((tmp_path / "once" / "unmask.json").read_text())
    first = json.loads((base / "unmask.json").read_text())
    assert about["trained_slots"] == first["trained_slots"] == first["text"]["slots"]
    about["text"]["train"]["learning_rate"] = 3e-4  # of another objective: that of `adapt --for embedding`
    for known, expected in (("fast", 1e-4), (5e-4, 5e-4)):
        (tmp_path / "once" / "unmask.json").write_text(json.dumps({**about, "adapt_rate": known}))
        assert adapt_settings({}, tmp_path / "once").train.learning_rate == pytest.approx(expected)
    (base / "unmask.json").unlink()  # as a published model's folder
    assert adapt_settings({}, base).train.learning_rate == adapt_settings({}).train.learning_rate == 1e-4
    for wrong in ("3e-3", 0, None, True):
        (base / "unmask.json").write_text(json.dumps({"text": {"train": {"learning_rate": wrong}}}))
        assert adapt_settings({}, base).train.learning_rate == 1e-4


def test_an_adaptation_is_resumed_from_its_own_model(corpus, tmp_path):
    for seed in (0, 1):
        pretrain(str(corpus), tmp_path / str(seed), settings=settings(steps=1, seed=seed), console=False)
    # The tokenizers are one: the models differ in their weights alone.
    shutil.copy(tmp_path / "0" / "tokenizer.json", tmp_path / "1" / "tokenizer.json")
    adapt(
        tmp_path / "0", str(corpus), tmp_path / "adapted", settings=adapt_settings({**SHORT, "steps": 2}), console=False
    )
    there = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="already holds"):
        adapt(tmp_path / "0", str(corpus), tmp_path / "1", console=False)
    assert sorted(tmp_path.rglob("*")) == there
    with pytest.raises(UserError, match="other data or settings: the model: not the same"):
        adapt(
            tmp_path / "1",
            str(corpus),
            tmp_path / "adapted",
            settings=adapt_settings({**SHORT, "steps": 3}),
            resume=True,
            console=False,
        )


def test_a_model_without_its_head_is_adapted_the_same_way_twice_and_resumed(corpus, tmp_path, capsys):
    pretrain(str(corpus), tmp_path / "base", settings=settings(steps=1), console=False)
    weights = load_file(tmp_path / "base" / "model.safetensors")
    kept = {k: v for k, v in weights.items() if not k.startswith("cls.")}
    assert len(kept) < len(weights)
    save_file(kept, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    note_weights(tmp_path / "base")

    def adapted(out, steps, **more):
        torch.rand(len(out))  # the generator stands elsewhere in every process
        return adapt(
            tmp_path / "base", str(corpus), tmp_path / out, settings=adapt_settings({**SHORT, "steps": steps}), **more
        )

    adapted("whole", 3)
    assert "learnt from scratch" in capsys.readouterr().err
    adapted("again", 3, console=False)
    whole, again = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "again"))
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[k], again[k]) for k in whole)
    assert adapted("whole", 4, console=False, resume=True).run.result.steps == 4
    assert load(tmp_path / "whole").folder.why_not_masked() is None


def test_adapting_under_a_launcher_prepares_and_reports_once(corpus, tmp_path, monkeypatch):
    pretrain(str(corpus), tmp_path / "base", settings=settings(steps=1), console=False)
    inside, build = [], TokenCache.build

    @contextmanager
    def not_the_first(settings):
        inside.append(True)
        yield False
        inside.clear()

    monkeypatch.setattr("unmask.training.pretraining.first_process_first", not_the_first)
    monkeypatch.setattr(TokenCache, "build", lambda *a, **k: build(*a, **k) if inside else pytest.fail("all at once"))
    chosen = adapt_settings({**SHORT, "steps": 1})
    adapt(tmp_path / "base", str(corpus), tmp_path / "out", settings=chosen, general=str(corpus), console=False)
    assert not (tmp_path / "out" / "report.html").exists()


def test_adapt_lowers_the_loss_and_measures_forgetting(corpus, tmp_path):
    pretrain(str(corpus), tmp_path / "base", settings=settings(steps=30), console=False)
    domain = tmp_path / "domain.txt"
    domain.write_text(
        "\n\n".join(f"the patient {i} was given {i % 7} mg of aspirin for acute pain {i}." for i in range(150))
    )
    found = adapt(
        tmp_path / "base",
        str(domain),
        tmp_path / "adapted",
        general=str(corpus),
        console=False,
        most_forgetting=100.0,
        settings=settings(steps=40, ratio=0.15, ratio_end=None),
    )
    assert found.after["loss"] < found.before["loss"]
    assert set(found.before) == {"loss", "accuracy", "general_loss", "general_accuracy"}
    assert load(tmp_path / "adapted").folder.random == []
    stopped = adapt(
        tmp_path / "base",
        str(domain),
        tmp_path / "guarded",
        general=str(corpus),
        console=False,
        most_forgetting=-100.0,
        settings=settings(steps=40, ratio=0.15, ratio_end=None),
    )
    assert stopped.run.result.stopped == "early"
    with pytest.raises(UserError, match="is the model to adapt"):
        adapt(tmp_path / "base", str(domain), tmp_path / "base", console=False)


def test_detection_leaves_a_discriminator_and_its_generator_for_transformers(corpus, tmp_path):
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "electra"
    more = {"batch_slots": 64, "accumulate": 3}  # more parts than rows
    chosen = settings(steps=30, objective="detection", generator=0.5, **more)
    made = pretrain(str(corpus), out, settings=chosen, console=False)
    curve = losses(out)
    assert sum(curve[-10:]) < 0.95 * sum(curve[:10])
    assert made.result.stopped == "finished"
    discriminator, told = transformers.ElectraForPreTraining.from_pretrained(out, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    generator, told = transformers.ElectraForMaskedLM.from_pretrained(out / "generator", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert torch.equal(
        discriminator.electra.embeddings.word_embeddings.weight, generator.electra.embeddings.word_embeddings.weight
    )
    torch.testing.assert_close(
        discriminator.electra.embeddings.position_embeddings.weight,
        generator.electra.embeddings.position_embeddings.weight,
    )
    ours = load(out, precision="fp32")
    text = "the quick brown fox"
    ids = torch.tensor(ours.tokenizer.encode([text])[0].ids)[None].long()
    with torch.inference_mode():
        theirs = discriminator.electra(ids).last_hidden_state.mean(1)
    torch.testing.assert_close(torch.from_numpy(ours.embed([text])), theirs, atol=1e-4, rtol=1e-4)
    with pytest.raises(UserError, match="electra"):
        ours.fill("the [MASK] fox")
    assert load(out / "generator").fill("the [MASK] fox")


def test_detection_needs_a_shape_it_can_be_saved_in():
    with pytest.raises(UserError, match="objective=detection"):
        settings(objective="detection", recipe="modern")


@pytest.mark.parametrize("ratio", [{"ratio": 0.0}, {"ratio_end": 0.0}, {"ratio": 1.0}])
def test_a_run_that_hides_nothing_or_all_is_refused(ratio):
    with pytest.raises(UserError, match=r"^ratio"):
        settings(**ratio)


def test_the_modern_recipe_hides_as_much_to_the_end():
    assert with_overrides(TextSettings(), RECIPES["modern"]).ratio_end is None


def begun(out, corpus, **more):
    """The embeddings of a run that learns next to nothing."""
    lost = settings(steps=1, learning_rate=1e-9, dropout=0.0, **more)
    pretrain(str(corpus), out, settings=lost, console=False)
    assert not (out / CO_OCCURRENCES).exists()
    return load(out).model.codec.word.weight.detach()


@pytest.mark.parametrize("recipe", ["bert", "modern"])
def test_a_new_model_begins_with_embeddings_counted_in_its_training_text(recipe, corpus, tmp_path):
    found = begun(tmp_path / "counted", corpus, recipe=recipe)
    cache = TokenCache.open(tmp_path / "counted" / "cache")
    shape = settings(recipe=recipe)
    factored = factors(information(co_occurrences(cache.pieces(), len(found))), shape.width, seed=shape.train.seed)
    vectors = torch.from_numpy(factored.vectors)
    live = vectors.any(1)
    seen, expected = found[live] - found[live].mean(0), vectors[live]
    assert live.sum() > 50
    assert torch.cosine_similarity(seen, expected - expected.mean(0)).min() > 0.99
    drawn = begun(tmp_path / "random", corpus, recipe=recipe, initial_embeddings="random")
    assert torch.equal(found[~live], drawn[~live])
    assert torch.cosine_similarity(found[live], drawn[live]).mean() < 0.8


def test_what_another_run_counted_is_counted_again(corpus, tmp_path):
    """A run that was killed before its first checkpoint leaves its counts behind."""
    expected = begun(tmp_path / "one", corpus)
    left = tmp_path / "two"
    stale = TextPretraining(str(corpus), settings(seed=5, initial_embeddings="co_occurrence"))
    stale.prepare(left, resume=False, first=True, say=lambda line: None)
    assert (left / CO_OCCURRENCES).exists()
    assert torch.equal(begun(left, corpus), expected)


def test_a_resumed_run_without_a_checkpoint_begins_as_a_new_one(corpus, tmp_path):
    """Its checkpoints were removed, or it was killed when only the weights of its best look were written."""
    run = tmp_path / "run"
    looks = {"patience": 50, "validate_every": 1}
    expected = pretrain(str(corpus), run, settings=settings(steps=2, **looks), console=False).result.validation
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    best = {name: torch.zeros_like(tensor) for name, tensor in load_file(run / "model.safetensors").items()}
    save_file(best, run / "checkpoints" / "best.safetensors", metadata={"step": "1"})
    again = pretrain(str(corpus), run, settings=settings(steps=2, **looks), resume=True, console=False)
    assert again.result.validation == expected
    assert not (run / CO_OCCURRENCES).exists()


@pytest.mark.parametrize("name", ["initial_embeddings", "initial_attention"])
def test_a_run_is_resumed_with_the_start_it_had(name, corpus, tmp_path):
    pretrain(str(corpus), tmp_path / "run", settings=settings(steps=1), console=False)
    there = (tmp_path / "run" / "unmask.json").read_bytes()
    with pytest.raises(UserError, match=rf"{name}=random, was "):
        pretrain(
            str(corpus), tmp_path / "run", settings=settings(steps=2, **{name: "random"}), resume=True, console=False
        )
    assert (tmp_path / "run" / "unmask.json").read_bytes() == there


def test_pieces_of_a_corpus_are_its_training_tokens_in_order(corpus, tmp_path):
    begun(tmp_path / "run", corpus, holdout=0.2)
    cache = TokenCache.open(tmp_path / "run" / "cache")
    tokens, example = (np.concatenate(parts) for parts in zip(*cache.pieces(), strict=True))
    inside = slice(len(cache.meta["before"]), -len(cache.meta["after"]))
    assert 0 < len(cache.train) < len(cache)
    np.testing.assert_array_equal(tokens, np.concatenate([cache.example(i)[0][inside] for i in cache.train]))
    np.testing.assert_array_equal(np.unique(example), cache.train)


@pytest.mark.parametrize("recipe", ["bert", "modern"])
def test_a_new_model_begins_with_the_frequencies_of_its_training_text(recipe, corpus, tmp_path):
    lost = settings(recipe=recipe, steps=1, validate_every=1, learning_rate=1e-9, dropout=0.0)
    run = pretrain(str(corpus), tmp_path / "run", settings=lost, console=False)
    counts = TokenCache.open(tmp_path / "run" / "cache").frequencies()
    share = (counts + 1) / (counts + 1).sum()
    bias = load(tmp_path / "run").model.codec.bias.detach().numpy()
    assert bias == pytest.approx(np.log(share), abs=1e-4)
    held = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    loss = next(row["validation_loss"] for row in held if "validation_loss" in row)
    assert loss == pytest.approx(-(share * np.log(share)).sum(), rel=0.1)
    assert run.result.steps == 1


@pytest.mark.parametrize(
    ("width", "generator", "expected"), [(192, 0.25, 48), (64, 0.25, 16), (256, 0.5, 128), (96, 0.3, 28)]
)
def test_the_generator_has_its_share_of_the_width(width, generator, expected):
    from unmask.modalities.text.network.pretrain import new_detection

    tokenizer = Tokenizer.train(["a quick fox"] * 9, vocab_size=100)
    given = {"objective": "detection", "recipe": "bert", "width": width, "layers": 1, "generator": generator}
    model, _ = new_detection(with_overrides(TextSettings(), given), tokenizer)
    assert model.generator.encoder.config.width == expected
    assert model.encoder.config.heads == max(1, width // 64)


def test_adapting_goes_on_with_the_general_text_it_began_with(corpus, tmp_path):
    pretrain(str(corpus), tmp_path / "base", settings=settings(steps=2), console=False)
    general = write_corpus(tmp_path / "general.txt", copies=100)
    options = {"console": False, "general": str(general)}
    more = {**SHORT, "steps": 2}
    adapt(tmp_path / "base", str(corpus), tmp_path / "out", settings=adapt_settings(more), **options)
    text = general.read_text()
    general.write_text(text[len(text) // 2 :] + text[: len(text) // 2])
    again = adapt_settings({**more, "steps": 3})
    with pytest.raises(UserError, match="the general text, or how much of it is learnt from: not the same"):
        adapt(tmp_path / "base", str(corpus), tmp_path / "out", settings=again, resume=True, **options)
