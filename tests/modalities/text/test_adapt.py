"""What `adapt` reports, and why it stopped."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file

from commands import run
from text_corpus import write_corpus
from unmask.modalities.text.network.adapt import adapt, adapt_settings
from unmask.modalities.text.network.pretrain import pretrain
from unmask.modalities.text.recipes import TextSettings, with_overrides

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


def test_a_run_that_only_makes_it_worse_keeps_the_start_and_says_why(base, corpus, tmp_path):
    harm = adapt_settings({**SHORT, "learning_rate": 2.0, "clip": "none", "patience": 2, "validate_every": 1})
    found = adapt(base, corpus, tmp_path / "out", settings=harm, console=False)
    assert found.run.result.kept_step == 0
    said = found.notes()
    assert "stopped at step 2: the held-out loss had not fallen for 2 looks; the weights of step 0 are kept" in said
    assert f"adapting did not lower the held-out loss: {tmp_path / 'out'} holds the weights as they were" in said
    before, after = load_file(base / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert found.after == found.before


def test_the_guard_against_forgetting_says_that_it_stopped_the_run(base, corpus, tmp_path):
    harm = adapt_settings({**SHORT, "learning_rate": 2.0, "clip": "none", "validate_every": 1})
    found = adapt(base, corpus, tmp_path / "out", settings=harm, general=corpus, console=False)
    assert any("the loss on general text had risen by more than its limit" in line for line in found.notes())
    again = adapt(base, corpus, tmp_path / "out", settings=harm, general=corpus, resume=True, console=False)
    assert again.notes()[-2:] == found.notes()[-2:]


def test_the_losses_before_and_after_are_reported(base, corpus, tmp_path, capsys):
    words = ["slots=32", "batch_slots=256", "holdout=0.2", "patience=none"]
    sets = [part for word in words for part in ("--set", word)]
    code, out, err = run(
        capsys, "adapt", base, corpus, "--out", tmp_path / "a", "--steps", 2, *sets, "--general", corpus
    )
    assert code == 0
    assert "before: loss " in err
    losses = r"on held-out texts from \d\.\d\d to \d\.\d\d, on general text from \d\.\d\d to \d\.\d\d"
    assert re.search(f"loss in nats per hidden token: {losses}", out)
    nothing = ["--set", "holdout=0", "--set", "patience=none", "--set", "slots=32", "--set", "batch_slots=256"]
    code, out, _ = run(capsys, "adapt", base, corpus, "--out", tmp_path / "b", "--steps", 2, *nothing)
    assert code == 0
    assert "loss in nats" not in out
