"""What the commands share."""

import gzip
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from unmask.cli.common import Output, overrides, run_lines, write_array
from unmask.cli.text.uses import read_lines
from unmask.errors import UserError
from unmask.modalities.text.recipes import TextSettings, with_overrides


def test_compressed_lines_are_read_and_damaged_ones_named(tmp_path):
    (tmp_path / "t.TXT.GZ").write_bytes(gzip.compress("\ufeffone\ntwo\n".encode()))
    assert read_lines(str(tmp_path / "t.TXT.GZ")) == ["one", "two"]
    for name, content in (("cut.gz", gzip.compress(b"one\n" * 99)[:20]), ("no.gz", b"one\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}: cannot be read"):
            read_lines(str(tmp_path / name))


@pytest.mark.parametrize("path", ["notes.md", "data/held-out", "held.parquet", "nowhere/"])
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


def test_texts_of_tables_are_read_from_their_column(tmp_path):
    (tmp_path / "a.jsonl").write_text('\ufeff{"text": "one\\nline", "n": 1}\n{"text": ""}\n')
    assert read_lines(str(tmp_path / "a.jsonl")) == ["one\nline", ""]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b'n,text\n1,"a, and ""b"""\n2,c\n'))
    assert read_lines(str(tmp_path / "a.csv.gz")) == ['a, and "b"', "c"]
    (tmp_path / "b.csv").write_text("id,note\n1,a\n")
    with pytest.raises(UserError, match=r"b\.csv: no column text among id, note"):
        read_lines(str(tmp_path / "b.csv"))
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n{"text": null}\n{"other": "a"}\n')
    with pytest.raises(UserError, match=r"(?s)b\.jsonl:2: text is None, .*b\.jsonl:3: text is None: no text"):
        read_lines(str(tmp_path / "b.jsonl"))


def test_a_json_list_is_read_as_the_table_it_is(tmp_path):
    """Not as lines of text: their brackets and keys would be filled, scored and embedded."""
    rows = [{"text": "one", "label": "a"}, {"text": "two", "label": "b"}]
    (tmp_path / "list.json").write_text(json.dumps(rows, indent=1))
    assert read_lines(str(tmp_path / "list.json")) == ["one", "two"]
    (tmp_path / "lines.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"lines\.json: not JSON") as refused:
        read_lines(str(tmp_path / "lines.json"))
    assert ".jsonl" in str(refused.value)


def test_stdin_is_read_and_folders_and_zero_bytes_are_refused(tmp_path):
    code = "from unmask.cli.text.uses import read_lines; print(read_lines('-'))"
    done = subprocess.run([sys.executable, "-c", code], input="one\ntwo\n", capture_output=True, text=True)
    assert done.stdout == "['one', 'two']\n", done.stderr
    done = subprocess.run([sys.executable, "-c", code], input="", capture_output=True, text=True)
    assert "stdin: empty" in done.stderr
    with pytest.raises(UserError, match="Is a directory"):
        read_lines(str(tmp_path))
    (tmp_path / "wide.txt").write_bytes("one\ntwo\n".encode("utf-16-le"))
    with pytest.raises(UserError, match=r"(?s)wide\.txt:1: a zero byte.*UTF-16 must be converted"):
        read_lines(str(tmp_path / "wide.txt"))


def test_an_array_is_written_as_its_parts_are_made(tmp_path):
    """All vectors were held until the last one was made."""
    whole = np.arange(3 * 4096 * 8, dtype=np.float32).reshape(-1, 8)

    def parts():
        for number, part in enumerate(np.split(whole, 3)):
            size = sum(p.stat().st_size for p in tmp_path.iterdir())
            assert size >= number * part.nbytes - 8192 * 2
            yield part

    assert write_array(parts(), len(whole), tmp_path / "vectors.npy") == whole.shape
    assert [p.name for p in tmp_path.iterdir()] == ["vectors.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), whole)
