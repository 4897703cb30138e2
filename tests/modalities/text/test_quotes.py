"""What a quote means in .csv and .tsv: one rule for pretraining and for tasks; what is left open is refused."""

from __future__ import annotations

import pytest

from unmask.errors import UserError
from unmask.modalities.text.reading.sources import iter_documents
from unmask.modalities.text.tasks.row_files import read_rows

PLAIN = ["text\tlabel", *['"Stop," he said.\ta', 'the "fox\tb', '"never closed\ta', 'he ran"\tb', '"all of it."\ta']]


def texts(path):
    """As tasks and pretraining read them: the same."""
    rows = [row["text"] for _, row in read_rows(path)]
    assert [d.text for d in iter_documents([str(path)])] == rows
    return rows


def write(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_published_tsv_has_quotes_as_characters(tmp_path):
    found = texts(write(tmp_path / "d.tsv", PLAIN))
    assert found == [line.partition("\t")[0] for line in PLAIN[1:]]


@pytest.mark.parametrize("quoting", [0, 1, 2])  # minimal, all, not numbers
def test_tsv_of_pandas_comes_back(tmp_path, quoting):
    import pandas as pd

    truth = ['he said "stop" now', "plain", "a\ttab", "two\nlines", '"']
    frame = pd.DataFrame({"text": truth, "label": [1, 2, 1, 2, 1]})
    frame.to_csv(tmp_path / "d.tsv", sep="\t", index=False, quoting=quoting)
    assert texts(tmp_path / "d.tsv") == truth


@pytest.mark.parametrize(
    ("name", "lines", "place"),
    [
        ("d.csv", ["label,text", "a,one", 'b,"two', "a,three", 'b,and "four"', "a,five"], "d.csv:3 to 5"),
        ("d.csv", ["label,text", "a,one", 'b,"two', "a,three"], "d.csv:3 to 4"),
        ("d.csv", ["label,text", 'a,"he said \\"so\\", twice"'], "d.csv:2"),
        ("d.tsv", ["text\tlabel", '"he said ""so"""\ta', '"never closed\tb', "next\ta"], "d.tsv:3 to 4"),
    ],
)
def test_a_quote_left_open_swallows_no_row(tmp_path, name, lines, place):
    path = write(tmp_path / name, lines)
    for read in (read_rows, lambda p: list(iter_documents([str(p)]))):
        with pytest.raises(UserError, match=f"{place}: (text follows a closing quote|a quote opens)"):
            read(path)
