"""examples/dna, installed beside unmask: a modality of a stranger, run from the command line without an
edit in unmask."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import run
from packages import ROOT, install_example, on_path

SMALL = [
    "--set",
    "width=32",
    "--set",
    "layers=1",
    "--set",
    "slots=40",
    "--set",
    "batch_slots=320",
    "--precision",
    "fp32",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the package installed, a FASTA file and a model of it."""
    site, here = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("dna")
    install_example(site, "dna")
    draw = np.random.default_rng(0)
    records = ["".join(draw.choice(list("ATCG"), n, p=[0.4, 0.3, 0.2, 0.1])) for n in draw.integers(20, 90, 40)]
    (here / "d.fasta").write_text("".join(f">s{i} note\n{r[:30]}\n{r[30:].lower()}\n" for i, r in enumerate(records)))
    with contextlib.contextmanager(on_path)(site):
        yield here


@pytest.fixture(scope="module")
def model(place):
    from unmask.cli import main

    with contextlib.suppress(SystemExit):
        main(["pretrain", "dna", str(place / "d.fasta"), "--out", str(place / "m"), "--steps", "8", *SMALL])
    return place / "m"


def test_it_is_at_most_150_lines():
    lines = [line for path in (ROOT / "examples/dna").rglob("*.py") for line in path.read_text().splitlines()]
    assert sum(bool(line.strip()) for line in lines) <= 150


def test_pretrain_writes_a_run_folder(place, model, capsys):
    names = {path.name for path in model.iterdir()}
    assert {"model.safetensors", "unmask.json", "metrics.jsonl", "report.html"} <= names
    code, out, _ = run(
        capsys, "pretrain", "dna", place / "d.fasta", "--out", model, "--steps", 9, *SMALL, "--resume", "--json"
    )
    assert code == 0
    assert json.loads(out)["steps"] == 9
    (place / "other.fasta").write_text((place / "d.fasta").read_text().replace("A", "G"))  # as many bases
    words = ("pretrain", "dna", place / "other.fasta", "--out", model, "--steps", 9, *SMALL, "--resume")
    assert "the data: not the same" in run(capsys, *words)[2]


def test_fill_writes_unsure_bases_and_leaves_the_others(place, model, capsys):
    (place / "n.fasta").write_text(">a\nATTNNCATGCATRCC\n>b\nATTACA\n")
    code, out, _ = run(capsys, "fill", model, place / "n.fasta", "--json")
    assert code == 0
    a, b = json.loads(out)["results"]
    assert [a["filled"][:3], a["filled"][5:12], a["filled"][13:]] == ["ATT", "CATGCAT", "CC"]
    assert set(a["filled"]) <= set("ATCG")
    assert (b["filled"], b["slots"]) == ("ATTACA", [])
    assert sum(slot["log_probability"] for slot in a["slots"]) == pytest.approx(a["log_probability"])


def test_score_and_embed(place, model, capsys):
    code, out, _ = run(capsys, "score", model, place / "d.fasta", "--json")
    assert code == 0
    results = json.loads(out)["results"]
    assert all(r["score"] < 0 and r["slots"] > 0 for r in results)
    code, out, _ = run(capsys, "embed", model, place / "d.fasta", "--out", place / "e.npy", "--json")
    assert code == 0
    assert np.load(place / "e.npy").shape == (len(results), 32)


@pytest.mark.parametrize("command", ["fill", "embed"])
def test_a_result_does_not_replace_what_is_read(place, model, tmp_path, capsys, command):
    content = ">a\nATTACANNACATTACA\n"
    (tmp_path / "n.fasta").write_text(content)
    code, _, err = run(capsys, command, model, tmp_path / "n.fasta", "--out", tmp_path / "n.fasta")
    assert code == 2
    assert "is a file that is read" in err
    assert (tmp_path / "n.fasta").read_text() == content


def test_evaluate_sets_trivial_rules_beside_the_model(place, model, capsys):
    (place / "h.fasta").write_text(">a\n" + "A" * 60 + "\n>b\n" + "TTTTTTTTTA" * 4 + "\n")
    code, out, _ = run(capsys, "evaluate", model, place / "h.fasta", "--json")
    assert code == 0
    found = json.loads(out)
    assert 0 < found["bases"] <= found["hidden_slots"]
    assert 0 < found["loss"] < 10
    assert all(0 <= found[name] <= 1 for name in ("base_accuracy", "most_frequent_base", "markov_of_order_3"))
    assert 0 < found["most_frequent_base"] < 1  # A is, and not all are A


def test_sequences_that_share_batches_are_predicted_as_they_are_alone(place, model):
    from unmask.registry import load

    loaded = load(model)
    named = loaded.read(str(place / "d.fasta"))
    together = {one.identity: (gone, values["token"]) for one, gone, values in loaded.predicted(named, 3)}
    assert len(together) == len(named) > 40
    for pair in named[::7]:
        ((one, gone, values),) = loaded.predicted([pair], 3)
        assert gone.any()
        for ours, theirs in zip((gone, values["token"]), together[one.identity], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_k_hidden_k_mers_hide_one_base():
    """As published: of overlapping k-mers, k neighbours must be hidden for one base not to be seen."""
    from unmask_dna.model import Contiguous
    from unmask_dna.sequences import bases_of, stretch

    from unmask.core.batch import pack
    from unmask.core.corruption import Corruption

    for k in (1, 3, 6):
        bases = "".join(np.random.default_rng(k).choice(list("ATCG"), 300))
        one = stretch(bases, k, identity=k)
        assert "".join("ATCG"[n] for n in bases_of(one.values["token"], k)) == bases
        shares = []
        for epoch in range(40):
            hidden = Corruption(select=Contiguous(k=k)).draw(pack([one], slots=len(one)), seed=0, epoch=epoch)
            gone = hidden.grid((1, len(one)))[0].numpy()[1:-1]
            shown = np.convolve(~gone, np.ones(k)) > 0
            assert (~shown).any()
            shares.append([gone.mean(), (~shown).mean()])
        hidden_share, unseen_share = np.mean(shares, 0)
        assert hidden_share == pytest.approx(0.14, abs=0.02)
        assert unseen_share < hidden_share / k * 1.7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "(none) has 0 bases"),
        ("ATTA\n", ":1: no '>' line above it"),
        (">a\nAT1A\n", ":2: '1'"),
        (">a\nATTA\n>a\nATTA\n", ":3: a second sequence named a"),
        (">a\nAT\n", "a has 2 bases"),
    ],
)
def test_bad_fasta_is_named_by_line(place, model, capsys, content, message):
    (place / "bad.fasta").write_text(content)
    code, _, err = run(capsys, "score", model, place / "bad.fasta")
    assert code == 2
    assert f"bad.fasta{message}" in err or f"bad.fasta: {message}" in err


def test_the_command_line_finds_it(place, model, tmp_path, capsys):
    assert run(capsys, "inspect", model)[0] == 0
    assert "dna " in run(capsys, "--help")[1]
    assert "dna " in run(capsys, "pretrain", "--help")[1]
    code, _, err = run(capsys, "fill", model, "d.fasta", "--top", 3)
    assert code == 2
    assert "--top: not read for dna" in err
    code, out, _ = run(capsys, "demo", "dna", "--out", tmp_path / "demo", "--minutes", 0.02, "--json")
    assert code == 0
    found = json.loads(out)
    assert Path(found["report"]).is_file()
    assert {"base_accuracy", "most_frequent_base", "markov_of_order_3"} <= found.keys()


def test_it_is_not_there_where_it_is_not_installed():
    done = subprocess.run(
        [sys.executable, "-m", "unmask", "pretrain", "--help"], capture_output=True, text=True, check=True
    )
    assert "dna" not in done.stdout
