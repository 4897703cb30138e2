"""What the commands share."""

import gzip
import json
from types import SimpleNamespace

import pytest

from unmask.cli.common import Output, overrides, read_lines, run_lines
from unmask.errors import UserError
from unmask.modalities.text.recipes import TextSettings, with_overrides


def test_compressed_lines_are_read_and_damaged_ones_named(tmp_path):
    (tmp_path / "t.TXT.GZ").write_bytes(gzip.compress("\ufeffone\ntwo\n".encode()))
    assert read_lines(str(tmp_path / "t.TXT.GZ")) == ["one", "two"]
    for name, content in (("cut.gz", gzip.compress(b"one\n" * 99)[:20]), ("no.gz", b"one\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}: cannot be read"):
            read_lines(str(tmp_path / name))


@pytest.mark.parametrize("path", ["notes.md", "data/held-out", "held.parquet", "/"])
def test_a_path_is_not_read_as_a_text(path):
    with pytest.raises(UserError, match="no such file"):
        read_lines(path)


@pytest.mark.parametrize("text", ["word", "An end.", "and/or both", "3.14", "[MASK]/day", "e.g. this", "MKTAYIAK"])
def test_a_text_is_itself(text):
    assert read_lines(text) == [text]


def test_a_run_tells_what_it_measured():
    result = SimpleNamespace(
        stopped="finished", steps=3, seconds=1.0, precision="fp32", device="cpu", validation={"validation_loss": 2.5}
    )
    lines = run_lines(result, "out", rate="5 x/s", held="loss {loss:.1f}, accuracy {accuracy:.1%}", notes=["a note"])
    assert lines == [
        "3 steps, 1 s, 5 x/s, fp32 on cpu",
        "a note",
        "loss 2.5, accuracy nan% (lower is better: loss; higher is better: accuracy)",
        "model:  out",
        "report: out/report.html",
    ]
    result.stopped = "signal"
    assert run_lines(result, "out", rate="", held="") == ["stopped by a signal after step 3; --resume continues"]


@pytest.mark.parametrize("written", ["epochs = 3", "[train]\nepochs = 3", "'train.epochs' = 3"])
def test_a_later_ending_replaces_an_earlier_one(tmp_path, written):
    (tmp_path / "f.toml").write_text("slots = 64\n" + written)

    def ending(*pairs, **flags):
        train = with_overrides(TextSettings(), overrides(str(tmp_path / "f.toml"), pairs, **flags)).train
        return train.steps, train.epochs, train.minutes

    assert ending() == (None, 3.0, None)
    assert ending(steps=1) == (1, None, None)
    assert ending("minutes=2") == (None, None, 2.0)
    assert ending("train.minutes=2", steps=1) == (1, None, None)
    assert ending("learning_rate=1e-4", steps=None) == (None, 3.0, None)


def test_under_a_launcher_the_first_process_speaks_for_all(capsys, monkeypatch):
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        Output(True).write({"rank": rank}, [])
        Output(False).write({}, [f"rank {rank}"])
    first, second = capsys.readouterr().out.splitlines()
    assert (json.loads(first)["rank"], second) == ("0", "rank 0")
