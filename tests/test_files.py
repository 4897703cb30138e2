"""Files appear whole or not at all, and what was there stays until then."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
import safetensors.numpy

from unmask import memory
from unmask.errors import UserError
from unmask.files import check_place, damaged, files_below, json_text, read_text
from unmask.writing import demo_folder, written, written_folder


def fails_after(path: Path, error: Exception) -> None:
    path.write_text("half of what is ne")
    raise error


def test_weights_that_cannot_be_read_are_the_fault_of_their_folder():
    with pytest.raises(UserError, match="model: damaged"), damaged("model"):
        safetensors.numpy.load(b"no tensors")
    with pytest.raises(ModuleNotFoundError), damaged("model"):
        raise ModuleNotFoundError("a package")


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.npy"
    with written(path) as place:
        place.write_text("first")
        assert place.suffix == ".npy"
        assert not path.exists()
    with pytest.raises(RuntimeError), written(path) as place:
        fails_after(place, RuntimeError())
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_and_a_full_disk_are_said(tmp_path):
    with pytest.raises(UserError, match=r"the folder .*nowhere does not exist"), written(tmp_path / "nowhere" / "a"):
        pass
    with pytest.raises(UserError, match=r"a: cannot be written \(No space left"), written(tmp_path / "a"):
        raise OSError(28, os.strerror(28))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_is_left_as_it_was_when_writing_fails(tmp_path, exists):
    folder = tmp_path / "model"
    if exists:
        folder.mkdir()
        (folder / "config.json").write_text("old")
    with pytest.raises(UserError, match="cannot be written"), written_folder(folder) as new:
        fails_after(new / "config.json", OSError(28, os.strerror(28)))
    assert folder.exists() == exists
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == (["config.json"] if exists else [])
    assert not exists or (folder / "config.json").read_text() == "old"


def test_one_rename_says_that_all_files_are_there_and_other_files_stay(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    moved, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (moved.append(os.path.basename(b)), replace(a, b)))
    with written_folder(folder) as new:
        for name in ("unmask.json", "model.safetensors", "config.json"):
            (new / name).write_text("{}")
    assert moved == [".saved", "config.json", "model.safetensors", "unmask.json"]
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors", "notes.txt", "unmask.json"]


def test_a_file_cannot_stand_where_a_folder_is(tmp_path):
    for folder in (".", "", tmp_path):
        with pytest.raises(UserError, match="a folder"):
            check_place(folder)


def test_a_dash_is_no_file():
    """Options for which it does not mean standard output wrote a file of that name."""
    with pytest.raises(UserError, match="not written to standard output"):
        check_place("-")


def test_a_demo_takes_a_new_folder_or_that_of_an_earlier_one(tmp_path):
    (demo_folder(tmp_path / "new") / "old.txt").touch()
    assert [p.name for p in demo_folder(tmp_path / "new").iterdir()] == ["demo.json"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(UserError, match="not an earlier demo"):
        demo_folder(tmp_path / "mine")
    for place in (tmp_path / "mine" / "file", tmp_path / "mine" / "file" / "demo"):
        with pytest.raises(UserError, match="is not a folder"):
            demo_folder(place)
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_json_is_written_as_utf_8_whatever_it_holds():
    assert json_text({"a": "é"}) == '{"a": "é"}'
    half = json_text({"a": "é\udce9"}, allow_nan=False)
    assert json.loads(half.encode("utf-8")) == {"a": "é\udce9"}


def test_what_is_hidden_below_a_folder_is_kept_apart_where_it_is_asked_for(tmp_path):
    for place in (".a/b", "c/.d", "c/e", "f"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("")
    hidden: list[Path] = []
    assert files_below(tmp_path, hidden=hidden) == [tmp_path / "c" / "e", tmp_path / "f"]
    assert sorted(hidden) == [tmp_path / ".a", tmp_path / "c" / ".d"]
    assert len(files_below(tmp_path)) == 4


def test_why_a_text_file_cannot_be_read_is_said_once_with_what_helps(tmp_path):
    with pytest.raises(UserError) as folder:
        read_text(tmp_path, hint="Give a file of names.")
    assert str(folder.value) == f"{tmp_path}: cannot be read (Is a directory)\n  Give a file of names."
    (tmp_path / "a.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match="cannot be read") as damaged:
        read_text(tmp_path / "a.txt.gz")
    assert damaged.value.hint == "Copy the file again."


def test_a_gzipped_file_of_more_than_memory_is_refused_part_by_part(tmp_path, monkeypatch):
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(gzip.compress(b"word " * 20_000_000))
    assert path.stat().st_size < 200_000
    monkeypatch.setattr(memory, "free_memory", lambda: memory.Free(1e6, "made up"))
    with pytest.raises(UserError, match=r"bomb\.txt\.gz: unpacked it has 16,777,216 bytes and more: .*made up"):
        read_text(path)
