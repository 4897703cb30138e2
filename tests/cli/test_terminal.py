"""What others wrote, in a terminal and in a spreadsheet: shown as it is, not obeyed."""

import csv
import sys
import warnings

import pandas as pd
import pytest

from commands import exit_code
from unmask.cli.common import Output, on_stderr
from unmask.modalities.table.writing.writers import write_table

CLEAR = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
SHOWN = r"\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"


def on_a_terminal(monkeypatch):
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)


def test_a_terminal_obeys_no_text_of_others(capsys, monkeypatch):
    on_a_terminal(monkeypatch)
    Output(False).write({}, [f"a\t{CLEAR}"])
    on_stderr(CLEAR)
    assert capsys.readouterr() == (f"a\t{SHOWN}\n", f"{SHOWN}\n")
    assert exit_code("describe", f"{CLEAR}.csv") == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_column_that_clears_the_screen_is_described(capsys, monkeypatch, tmp_path):
    on_a_terminal(monkeypatch)
    (tmp_path / "t.csv").write_text(f"a,{CLEAR}\n" + "".join(f"{i % 7},{i % 3}{CLEAR}\n" for i in range(30)))
    assert exit_code("describe", tmp_path / "t.csv") == 0
    out, err = capsys.readouterr()
    assert SHOWN in out
    assert "\x1b" not in out + err


def test_what_is_piped_is_as_it_is(capsys):
    Output(False).write({}, [CLEAR])
    assert capsys.readouterr().out == f"{CLEAR}\n"


CELLS = ["=1+1", "+cmd", "-2", "-2+3", "@x", "-1.5e-3", "+4,5", "a=b", "\t=1", ""]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_cells_that_a_spreadsheet_would_run_are_warned_of_or_escaped(tmp_path, kind):
    table, path = pd.DataFrame({"=name": CELLS, "n": range(10)}), tmp_path / f"t.{kind}"
    with pytest.warns(UserWarning, match=r"6 cells .* formula, the first a name: '=name'; .*escape_formulas"):
        write_table(table, path)
    cells = [row[0] for row in csv.reader(path.open(), delimiter="," if kind == "csv" else "\t")]
    assert cells == ["=name", *CELLS]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_table(table, path, escape_formulas=True)
        write_table(table, tmp_path / "t.parquet")
        write_table(table[["n"]], tmp_path / "n.csv")
    cells = [row[0] for row in csv.reader(path.open(), delimiter="," if kind == "csv" else "\t")]
    assert cells == ["'=name", *(f"'{c}" if c in ("=1+1", "+cmd", "-2+3", "@x", "\t=1") else c for c in CELLS)]
    assert len(pd.read_parquet(tmp_path / "t.parquet")) == len(CELLS)
