import gzip
import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import UserError
from unmask.modalities.text.reading.documents import ReadReport, pieces
from unmask.modalities.text.reading.sources import expand, iter_documents, resolve
from unmask.modalities.text.tokens import scanning


def read(path, **options):
    return [d.text for d in iter_documents([str(path)], **options)]


def test_every_format_gives_its_documents(tmp_path):
    import polars as pl

    rows = ["first text", "second, with a comma", "drittes ü 三"]
    (tmp_path / "a.txt").write_text("first\nline\n\nsecond\n\n\nthird", encoding="utf-8")
    (tmp_path / "b.md").write_text("# one\n\ndocument\n")
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps({"id": 1, "text": r}) for r in rows), encoding="utf-8")
    pl.DataFrame({"text": rows}).write_csv(tmp_path / "d.csv")
    pl.DataFrame({"body": rows}).write_parquet(tmp_path / "e.parquet")
    with gzip.open(tmp_path / "f.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps({"content": "zipped"}) + "\n")
    assert read(tmp_path / "a.txt") == ["first\nline", "second", "third"]
    assert read(tmp_path / "b.md") == ["# one\n\ndocument"]
    for name in ("c.jsonl", "d.csv", "e.parquet"):
        assert read(tmp_path / name) == rows
    assert read(tmp_path / "f.jsonl.gz") == ["zipped"]
    # A folder takes all of it; the rows of c, d and e are exact copies of each other.
    assert len(read(tmp_path)) == 3 + 1 + 3 + 1
    assert len(expand([str(tmp_path / "*.jsonl")])) == 1


def test_duplicates_empty_and_undecodable_are_counted_by_name_and_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"same\n\nsame\n\nbad \xff byte\n\ngood\n")
    report = ReadReport()
    assert [d.text for d in iter_documents([path], report=report)] == ["same", "good"]
    assert (report.documents, report.duplicates, report.undecodable) == (2, 1, 1)
    assert any("a.txt:5" in e and "0xff" in e for e in report.examples)


def test_text_that_is_mostly_of_another_encoding_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(
        "".join(f"l'été numéro {i}\n" for i in range(40)).encode("latin-1")
        + "".join(f"\ngood {i}\n" for i in range(10)).encode()
    )
    with pytest.raises(UserError, match=r"40 lines or rows are not UTF-8, documents that are: 10") as refused:
        read(path)
    assert "a.txt:1 not UTF-8 (byte 0xe9)" in refused.value.hint
    assert "iconv" in refused.value.hint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"PK\x03\x04\0\0binary", "binary"),
        ("a.txt", b"", "no text found"),
        ("a.txt", b"\n \n\n", "no text found"),
        ("a.xyz", b"text", "not read"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": ', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", b'{"title": "x"}\n', r"a\.jsonl:1: no text column among title"),
        ("a.jsonl", b'{"text": 3}\n', r"a\.jsonl:1: text is a int"),
        ("a.csv", b"text,n\nfine,1\nragged\n", r"a\.csv:3: 1 fields"),
        ("a.parquet", b"not parquet at all", "not a parquet file"),
    ],
)
def test_bad_input_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name)


def test_missing_file_suggests_its_neighbour(tmp_path):
    (tmp_path / "corpus.txt").write_text("text")
    with pytest.raises(UserError, match=r"corpus\.txt"):
        read(tmp_path / "corpsu.txt")


def test_unknown_column_suggests(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"abstract_text": "x"}\n')
    with pytest.raises(UserError, match="abstract_text"):
        read(tmp_path / "a.jsonl", column="abstract_txt")


def test_a_line_of_50_mb_is_cut_in_bounded_pieces(tmp_path):
    path = tmp_path / "long.txt"
    with path.open("w") as file:
        for i in range(50):
            file.write(f"word{i} " * 150_000)
    report, start = ReadReport(), time.perf_counter()
    sizes = [len(d.text) for d in iter_documents([path], report=report)]
    assert time.perf_counter() - start < 20
    assert max(sizes) <= 10_000_000
    assert sum(sizes) >= path.stat().st_size - 10 * len(sizes)
    assert report.split >= 1
    assert "cut into several" in report.examples[0]


def test_a_bad_row_costs_only_itself(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text,n\nok,1\nb\xffd,2\ngood,3\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "b\xff"}\n{"text": "half \\ud800 pair"}\n{"text": "fine"}\n')
    report = ReadReport()
    found = [d.text for d in iter_documents([tmp_path / "a.csv", tmp_path / "b.jsonl"], report=report)]
    assert found == ["ok", "good", "fine"]
    assert report.undecodable == 3
    assert "a.csv:3" in report.examples[0]


def test_a_byte_order_mark_is_not_text(tmp_path):
    for name, content in (("a.txt", b"hi"), ("b.jsonl", b'{"text": "hi"}'), ("c.csv", b"text\nhi")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content)
        assert read(tmp_path / name) == ["hi"]


def test_damage_is_named_not_raised_bare(tmp_path):
    import polars as pl

    whole = gzip.compress(b"".join(b"line %d\n\n" % i for i in range(20_000)))
    (tmp_path / "a.txt.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b.jsonl").write_text("[" * 100_000)
    pl.DataFrame({"text": [1, 2]}).write_parquet(tmp_path / "c.parquet")
    (tmp_path / "d.csv").write_text('text,n\nok,1\n"open,2\n' + "more,3\n" * 5)
    for name, message in (
        ("a.txt.gz", "whole gzip"),
        ("b.jsonl", "not JSON"),
        ("c.parquet", r"c\.parquet:1: text is a int"),
        ("d.csv", r"d\.csv:3 to 8: a quote opens a cell"),
    ):
        with pytest.raises(UserError, match=message):
            read(tmp_path / name)


def test_a_row_without_the_column_names_line_and_keys(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"txet": "b", "id": 1}\n')
    with pytest.raises(UserError, match=r"a\.jsonl:2: no column 'text' among txet, id"):
        read(tmp_path / "a.jsonl", column="text")


def test_a_glob_takes_only_formats_that_are_read(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.bin").write_text("not text")
    assert expand([str(tmp_path / "a.*")]) == [tmp_path / "a.txt"]
    with pytest.raises(UserError, match="none of a format"):
        expand([str(tmp_path / "*.bin")])


@given(text=st.text(alphabet="ab \n語é", max_size=80), longest=st.integers(1, 30))
def test_pieces_are_the_text(text, longest):
    made = list(pieces(text, longest))
    assert "".join(made) == text
    assert all(len(piece) <= longest for piece in made)


@pytest.mark.parametrize("suffix", [".txt", ".md", ".jsonl", ".csv"])
def test_no_document_is_longer_than_asked(suffix, tmp_path):
    words = " ".join(f"語{i}" for i in range(400))
    content = {".jsonl": json.dumps({"text": words}), ".csv": f"text\n{words}"}.get(suffix, words)
    (tmp_path / f"a{suffix}").write_text(content, encoding="utf-8")
    report = ReadReport()
    found = read(tmp_path / f"a{suffix}", max_characters=100, report=report)
    assert max(map(len, found)) <= 100
    assert " ".join(found).split() == words.split()
    assert report.split == 1


def test_a_dataset_name_without_the_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'unmask\[datasets\]'"):
        read("hf:wikitext")


def test_linked_folders_are_read_once(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.txt").write_text("far away")
    data = tmp_path / "data"
    data.mkdir()
    (data / "b.txt").write_text("near by")
    (data / "link").symlink_to(tmp_path / "far")
    (data / "again").symlink_to(tmp_path / "far")
    (data / "round").symlink_to(data)
    assert expand(data) == [data / "again" / "a.txt", data / "b.txt"]


def test_a_run_inside_its_data_does_not_read_itself(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"text": 1}')
    mine = [str(tmp_path / "a.txt")]
    assert resolve([str(tmp_path)], tmp_path / "run") == mine
    assert resolve([str(tmp_path / "**")], tmp_path / "run") == mine
    # One that is named is asked for.
    assert resolve([str(tmp_path / "run" / "metrics.jsonl"), "hf:name"], tmp_path / "run")[1] == "hf:name"


def mixed(folder):
    """A folder of a text, and of what is not read beside it."""
    for place, content in {
        "ok.txt": "some text",
        "sub/.deep.txt": "hidden",
        ".git/desc.txt": "of no interest",
        ".hidden.txt": "hidden",
        ".ipynb_checkpoints/one-checkpoint.md": "an older copy",
        "._ok.txt": "\0\5\26\7",  # macOS keeps what its own file systems know in such files
        "b.pdf": "%PDF",
        "c.html": "<p>",
        "LICENSE": "free",
        "e.parquet.gz": "packed twice",
    }.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(content)
    (folder / "a.txt").symlink_to("gone.txt")
    return folder


def test_what_stands_in_a_folder_and_is_not_read_is_said_in_a_line(tmp_path):
    data, said = mixed(tmp_path / "data"), list[str]()
    assert set(resolve([str(data), str(data)], tmp_path / "run", said.append)) == {str(data / "ok.txt")}
    assert said == [
        "10 files and folders were not read: 1 link to nothing (a.txt), 4 of kinds that are not read "
        "(.html, .parquet.gz, .pdf and 1 more), 5 hidden (._ok.txt, .deep.txt, .git and 2 more)"
    ]
    assert read(data) == ["some text"]
    for name in ("a.txt", "b.pdf", "c.html", "LICENSE", "e.parquet.gz", "._ok.txt", ".hidden.txt", "sub/.deep.txt"):
        (data / name).unlink()
    said.clear()
    assert list(iter_documents(data, say=said.append))
    assert said == ["2 folders were not read: 2 hidden (.git, .ipynb_checkpoints)"]
    said.clear()
    assert resolve([str(data / "ok.txt"), "hf:name"], None, said.append)[1] == "hf:name"
    assert not said


def test_what_is_hidden_is_read_where_it_is_named(tmp_path):
    data, said = mixed(tmp_path / "data"), list[str]()
    hidden = data / ".hidden.txt"
    assert read(hidden) == ["hidden"]
    assert read(data / ".git") == ["of no interest"]
    assert read(data / ".h*") == ["hidden"]
    assert resolve([str(data), str(hidden)], None, said.append) == [str(data / "ok.txt"), str(hidden)]
    assert "4 hidden (._ok.txt, .deep.txt, .git and 1 more)" in said[0]


def test_a_link_into_a_hidden_folder_is_read(tmp_path):
    (tmp_path / ".store" / "texts").mkdir(parents=True)
    (tmp_path / ".store" / "texts" / "a.txt").write_text("kept elsewhere")
    (tmp_path / "texts").symlink_to(".store/texts")
    assert expand(tmp_path) == [tmp_path / "texts" / "a.txt"]


def test_what_a_pattern_finds_and_is_not_read_is_said(tmp_path):
    data, said = mixed(tmp_path / "data"), list[str]()
    assert resolve([str(data / "*")], None, said.append) == [str(data / "ok.txt")]
    assert said == [
        "5 files were not read: 1 link to nothing (a.txt), 4 of kinds that are not read "
        "(.html, .parquet.gz, .pdf and 1 more)"
    ]


def test_a_url_is_read_as_a_folder_is(tmp_path):
    data, said = mixed(tmp_path / ".data"), list[str]()
    (data / "a.txt").unlink()
    for url in (f"file://{data}", f"file://{data}/", f"file://{data}/**"):
        said.clear()
        assert [name.rpartition("/")[2] for name in resolve([url], None, said.append)] == ["ok.txt"], url
        assert "4 of kinds that are not read" in said[0]
    assert resolve([f"file://{data}/.hidden.txt"], None, said.append)[0].endswith(".hidden.txt")


def test_a_folder_without_texts_says_what_it_holds(tmp_path):
    (tmp_path / "b.pdf").write_text("%PDF")
    (tmp_path / "c.txt").symlink_to(tmp_path / "c.txt")
    os.mkfifo(tmp_path / "d.txt")
    with pytest.raises(UserError, match="no text files in this folder") as refused:
        expand(tmp_path)
    assert refused.value.hint.startswith(
        "3 files were not read: 1 link to nothing (c.txt), 1 that is no plain file (d.txt), "
        "1 of a kind that is not read (.pdf). Read are .txt "
    )


def test_a_link_to_nothing_is_named_with_where_it_leads(tmp_path):
    (tmp_path / "dd.txt").symlink_to("gone.txt")
    (tmp_path / "round.txt").symlink_to("round.txt")
    with pytest.raises(UserError, match=rf"dd\.txt: a link to {tmp_path}/gone\.txt, which is not there") as refused:
        expand(tmp_path / "dd.txt")
    assert "blanks" not in refused.value.hint
    with pytest.raises(UserError, match=r"round\.txt: a link that leads back to itself\n"):
        expand(tmp_path / "round.txt")


def test_a_suffix_in_capitals_is_one(tmp_path, monkeypatch):
    (tmp_path / "A.TXT").write_text("loud")
    (tmp_path / "B.JSONL").write_text('{"text": "louder"}\n')
    (tmp_path / "C.TXT.GZ").write_bytes(gzip.compress(b"loudest\nof\nall\n" * 99))
    assert read(tmp_path) == ["loud", "louder", "loudest", "of", "all"]
    monkeypatch.setattr(scanning, "LEAST", 1)
    assert scanning.portions([str(tmp_path / "C.TXT.GZ")], "auto") == [(scanning.Piece(str(tmp_path / "C.TXT.GZ")),)]


def test_what_a_run_inside_its_data_holds_is_not_said(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "run").mkdir()
    for name in ("config.json", ".run.lock", "metrics.jsonl"):
        (tmp_path / "run" / name).write_text("{}")
    said: list[str] = []
    resolve([str(tmp_path)], tmp_path / "run", said.append)
    resolve([str(tmp_path / "**")], tmp_path / "run", said.append)
    assert not said
