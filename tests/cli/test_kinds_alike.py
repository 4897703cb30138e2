"""What models of all kinds have in common: every long use says how far it is, `inspect` has the same keys,
repr is a line."""

from __future__ import annotations

import json
import re
import sys

import pytest

import tiny_folders
import unmask
from commands import exit_code
from tiny_images import TINY, bars
from tiny_kinds import N, clinic, hospital
from unmask.errors import UserError
from unmask.modalities.events.sources.convert import convert
from unmask.modalities.images import recipes
from unmask.progress import reporting_to
from unmask.writing import SAVED


def test_a_multiple_imputation_is_shown_in_a_line():
    done = unmask.MultipleImputation(2, rounds=1)
    assert repr(done) == "MultipleImputation(2 draws, not fitted)"
    assert repr(done.fit(clinic())) == f"MultipleImputation(2 draws, 1 of 3 columns completed in {N} rows)"


class Heard:
    """The shares that a listener was told."""

    def __init__(self):
        self.shares = []

    def begin(self):
        self.shares.append(0.0)

    def __call__(self, done, *, whole):
        self.shares.append(done)


def uses_of_text(folder):
    model = unmask.load(tiny_folders.folder(folder / "m"), precision="fp32", device="cpu")
    yield "model", model
    texts = ["the fox jumps over it"] * N
    yield "fill", lambda: model.fill(["the [MASK] fox"] * N)
    yield "score", lambda: model.score(texts)
    yield "embed", lambda: model.embed(texts)
    yield "evaluate", lambda: model.evaluate(texts, ratio=0.5)


def uses_of_table(folder):
    model = unmask.TableModel.fit(clinic(), steps=0, members=2)
    yield "model", model
    yield "impute", lambda: model.impute(clinic())
    yield "impute, drawn", lambda: model.impute(clinic(), draws=2)
    yield "impute --proper", lambda: unmask.MultipleImputation(2, rounds=1).fit(clinic())
    yield "synthesize", lambda: model.synthesize(N)
    yield "score", lambda: model.score(clinic())
    yield "embed", lambda: model.embed(clinic())


def uses_of_images(folder):
    settings = recipes.with_overrides(recipes.ImageSettings(), TINY | {"patch": 2, "steps": 1})
    unmask.images.pretrain(bars(), folder / "m", settings=settings, console=False)
    model, (pixels, labels) = unmask.load(folder / "m", device="cpu"), bars()
    yield "model", model
    yield "fill", lambda: model.reconstruct(pixels, ratio=0.5)
    yield "score", lambda: model.score(pixels)
    yield "embed", lambda: model.embed(pixels)
    yield "evaluate", lambda: model.evaluate((pixels, labels))


def uses_of_events(folder):
    meds = hospital(folder)
    sizes = {"width": 32, "layers": 1, "heads": 2, "inner": 32, "slots": 32, "steps": 1, "floor": 1}
    settings = unmask.events.with_overrides(unmask.events.Settings(), sizes)
    unmask.events.pretrain(meds, folder / "m", settings=settings, console=False)
    model = unmask.load(folder / "m", device="cpu")
    yield "model", model
    yield "fill", lambda: model.fill(meds)
    yield "score", lambda: model.score(meds)
    yield "embed", lambda: model.embed(meds)
    yield "audit", lambda: unmask.events.audit(meds)
    yield "convert", lambda: convert(folder / "e.csv", folder / "again")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("uses", [uses_of_text, uses_of_table, uses_of_images, uses_of_events])
def test_a_model_says_what_it_is_and_its_uses_how_far_they_are(uses, tmp_path, capsys):
    kind, found = uses.__name__.removeprefix("uses_of_"), uses(tmp_path)
    _, model = next(found)
    about = model.inspect()
    assert about["kind"] == kind
    assert min(about["parameters"], about["slots"]) > 0
    assert re.fullmatch(r"\w+Model\(.* M parameters, .*\)", repr(model))
    for name, use in found:
        with reporting_to(heard := Heard()):
            use()
        assert heard.shares[-1:] >= [1], name
    assert "left" not in capsys.readouterr().err
    refuses_other_weights(model, tmp_path / "m")
    a_loader_ends_what_a_killed_writer_began(model, tmp_path / "m")
    a_shared_copy_has_nothing_of_the_run(tmp_path / "m", capsys)


def refuses_other_weights(model, folder):
    """A flipped bit of a weight is another model, which no reader of the file can see."""
    if not folder.exists():
        model.save(folder)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(UserError, match=r"model\.safetensors: altered since it was written"):
        unmask.load(folder, device="cpu")
    path.write_bytes(whole)
    unmask.load(folder, device="cpu")


def a_loader_ends_what_a_killed_writer_began(model, folder):
    """Only `unmask.load` did: a loader called by itself read the files of two models, or found none."""
    files = sorted(p.name for p in folder.iterdir())
    (folder / SAVED).mkdir()
    for name in files:
        (folder / name).rename(folder / SAVED / name)
    assert type(sys.modules[type(model).__module__].load(folder)) is type(model)
    assert sorted(p.name for p in folder.iterdir()) == files


def a_shared_copy_has_nothing_of_the_run(folder, capsys):
    (folder / "cache").mkdir(exist_ok=True)
    for name in ("report.html", "metrics.jsonl", "cache/offsets.bin", "predictions.json"):
        (folder / name).write_text("Frau Muster")
    copy = folder.with_name("shared")
    capsys.readouterr()
    assert exit_code("export", folder, "--to", "share", "--out", copy, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"report.html", "metrics.jsonl", "cache", "predictions.json"} <= set(found["left_out"])
    assert "Frau Muster" not in "".join(p.read_text("latin-1") for p in copy.rglob("*") if p.is_file())
    assert (copy / "unmask.json").is_file()
    weights = (folder / "model.safetensors").read_bytes()
    assert (copy / "model.safetensors").read_bytes() == weights
    unmask.load(copy, device="cpu")
