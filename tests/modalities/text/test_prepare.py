"""A prepared corpus holds what pretrain makes of the data itself, whoever prepares it and however often that was cut
short."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from text_corpus import tokenizer
from unmask import text
from unmask.cli import main
from unmask.errors import UserError
from unmask.modalities.text.reading.sources import resolve
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tokens import prepare as preparing
from unmask.modalities.text.tokens import scanning
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.corpus import build_tokenizer
from unmask.modalities.text.tokens.shards import Joined

SMALL = with_overrides(TextSettings(), {"vocabulary": 200, "slots": 32, "batch_slots": 64, "holdout": 0.05})
WORDS = ["alpha", "beta", "gamma", "Straße", "naïve", "東京", "."]
RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every format, with copies across files, blank, empty and undecodable documents."""
    root, rng = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)

    def line() -> str:
        return " ".join(rng.choice(WORDS, rng.integers(3, 40)))

    def rows(count: int) -> list[dict[str, str]]:
        return [{"text": line()} for _ in range(count)]

    (root / "a.txt").write_text("\ufeff" + "\n\n".join(f"{line()}\n{line()}" for _ in range(80)))
    (root / "b.txt").write_bytes("\r\n".join(line() for _ in range(80)).encode())
    bad = [line().encode() for _ in range(80)]
    bad[60] = b"caf\xe9 one two three"
    (root / "c.txt").write_bytes(b"\n \t\n\n".join(bad))
    many = rows(120)
    many[7], many[110], many[90], many[100] = many[3], many[1], {"text": " "}, {"text": "\ud800 half a pair"}
    (root / "d.jsonl").write_text("\n".join(map(json.dumps, many)))
    (root / "e.csv").write_text("id,text\n" + "\n".join(f'{i},"{line()}\n{line()}"' for i in range(20)))
    with gzip.open(root / "f.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, many[:20] + rows(20))))
    pq.write_table(pa.table({"text": [line() for _ in range(100)]}), root / "g.parquet", row_group_size=20)
    (root / "h.txt").write_bytes(b"")
    (root / "i.md").write_text("\n\n".join(line() for _ in range(20)))
    return root


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "LEAST", 700)


def raw(corpus: Path, out: Path, settings: TextSettings = SMALL) -> TokenCache:
    out.mkdir()
    files = resolve([str(corpus)], out)
    made = build_tokenizer(files, out, settings, print)
    return TokenCache.build(files, made, out / "cache", settings=settings, say=print)


def same(one: TokenCache, two: TokenCache) -> None:
    names = ("fingerprint", "report", "examples", "tokens", "documents", "unknown", "short", "held_out_by", "dtype")
    assert {n: one.meta[n] for n in names} == {n: two.meta[n] for n in names}
    for name in ("lengths", "train", "validation"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert one.digest() == two.digest()
    np.testing.assert_array_equal(one.frequencies(), two.frequencies())
    for number in range(len(one)):
        for left, right in zip(one.example(number), two.example(number), strict=True):
            np.testing.assert_array_equal(left, right)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("least", [700, 20_000])
def test_what_is_prepared_is_what_pretrain_makes_of_the_data(corpus, tmp_path, monkeypatch, least):
    monkeypatch.setattr(scanning, "LEAST", least)
    found = text.prepare(corpus, tmp_path / "p", settings=SMALL, workers=1)
    cache = TokenCache.open(tmp_path / "p")
    same(raw(corpus, tmp_path / "raw"), cache)
    assert cache.meta["report"]["duplicates"] == found.counts["duplicates"] > 10
    notes = cache.meta["report"]["examples"]  # lines are counted from the file's first, wherever a portion begins
    assert [n.removeprefix(f"{corpus}/") for n in notes] == [
        "c.txt:181 not UTF-8 (byte 0xe9), left out",
        "d.jsonl:91 empty",
        "d.jsonl:101 half a surrogate pair, left out",
        "h.txt empty file",
    ]
    assert (found.counts["shards"] > 60) is (least == 700)


def test_entities_are_units_of_what_is_prepared_too(tmp_path):
    rows = [{"text": f"  {' '.join(WORDS * 3)} {i}", "entities": [{"start": 2, "end": 12}]} for i in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = with_overrides(SMALL, {"hide": "entity"})
    text.prepare(tmp_path / "a.jsonl", tmp_path / "p", settings=settings, workers=1)
    cache = TokenCache.open(tmp_path / "p")
    same(raw(tmp_path / "a.jsonl", tmp_path / "raw", settings), cache)
    text.prepare(tmp_path / "a.jsonl", tmp_path / "q", settings=SMALL, workers=1)
    units = [TokenCache.open(tmp_path / name).example(0)[1].max() for name in ("p", "q")]
    assert units[0] == units[1] - 1  # "alpha beta" is one
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"text": row["text"]}) for row in rows))
    with pytest.raises(UserError, match="no entity is marked"):
        text.prepare(tmp_path / "b.jsonl", tmp_path / "r", settings=settings, workers=1)


def test_a_sample_that_was_too_small_is_taken_again(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "first_threshold", lambda size, most: scanning.ALL >> 9)
    said: list[str] = []
    text.prepare(corpus, tmp_path / "p", settings=SMALL, workers=1, say=said.append)
    assert sum("more text is needed" in line for line in said) > 1
    same(raw(corpus, tmp_path / "raw"), TokenCache.open(tmp_path / "p"))


def test_the_tail_is_held_out_where_no_document_is(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(f"{' '.join(WORDS * 9)} {i}" for i in range(60)))
    settings = with_overrides(SMALL, {"holdout": 0.001})
    text.prepare(tmp_path / "a.txt", tmp_path / "p", settings=settings, workers=1)
    cache = TokenCache.open(tmp_path / "p")
    assert cache.meta["held_out_by"] == "tail"
    assert cache.validation.tolist() == [len(cache) - 1]
    same(raw(tmp_path / "a.txt", tmp_path / "raw", settings), cache)


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.skipif(not RAY, reason="no ray"))])
def test_the_bytes_are_the_same_whoever_prepares(corpus, tmp_path, monkeypatch, engine):
    monkeypatch.setattr(scanning, "LEAST", 8_000)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    text.prepare(corpus, tmp_path / "one", settings=SMALL, workers=1)
    text.prepare(corpus, tmp_path / "two", settings=SMALL, workers=2, engine=engine)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_what_was_cut_short_goes_on_to_the_same_bytes(corpus, tmp_path, monkeypatch):
    text.prepare(corpus, tmp_path / "whole", settings=SMALL, workers=1)
    count = int(TokenCache.open(tmp_path / "whole").meta["shards"])
    from unmask.engines.local import LocalEngine

    run, done = LocalEngine.run, []

    def cut(self, function, common, tasks):
        for i, result in run(self, function, common, tasks):
            done.append(function)
            yield i, result
            if len(done) in (10, count + 15):
                raise KeyboardInterrupt

    monkeypatch.setattr(LocalEngine, "run", cut)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            text.prepare(corpus, tmp_path / "cut", settings=SMALL, workers=1)
        (tmp_path / "cut" / "shards" / ".000001.tokens.bin.host.1.new").write_bytes(b"half a shard")
    with pytest.raises(UserError, match="its preparation has not ended"):
        text.pretrain(str(tmp_path / "cut"), tmp_path / "run", console=False)
    said: list[str] = []
    text.prepare(corpus, tmp_path / "cut", settings=SMALL, workers=1, say=said.append)
    assert f"tokenising goes on: 15 of {count} shards are there" in said
    assert len(done) == 2 * count
    assert files(tmp_path / "whole") == files(tmp_path / "cut")
    text.prepare(corpus, tmp_path / "cut", settings=SMALL, workers=1)  # nothing is left to do
    assert len(done) == 2 * count


def test_a_run_on_prepared_data_is_the_run_on_the_data(corpus, tmp_path):
    few = {"width": 16, "heads": 2, "layers": 1, "steps": 3, "precision": "fp32", "device": "cpu"}
    settings = with_overrides(SMALL, few)
    text.prepare(corpus, tmp_path / "p", settings=settings, workers=1)
    text.pretrain(str(corpus), tmp_path / "one", settings=settings, console=False)
    given = [f"--set={k}={v}" for k, v in {**few, "batch_slots": 64}.items()]
    with pytest.raises(SystemExit, match="0"):
        main(["pretrain", "text", str(tmp_path / "p"), "--out", str(tmp_path / "two"), *given])
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("one", "two")]
    assert weights[0] == weights[1]
    figures = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    before = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("loss") for line in figures] == [line.get("loss") for line in before]
    assert not (tmp_path / "two" / "cache").exists()


def test_settings_that_contradict_what_was_prepared_are_refused(corpus, tmp_path):
    text.prepare(corpus / "d.jsonl", tmp_path / "p", settings=SMALL, workers=1)
    tokenizer("wordpiece").save(tmp_path / "other")
    for change, message in (
        ({"slots": 64}, r"slots=64, and .*p was prepared with slots=32"),
        ({"holdout": 0.2}, r"holdout=0.2, and .*p was prepared with holdout=0.05"),
        ({"column": "body"}, r"column=body, and .*p was prepared with column=None"),
        ({"document": "line"}, r"document=line, and .*p was prepared with document=auto"),
        ({"sentences": 0.5}, r"sentences=0.5, and .*p was prepared with sentences=0.0"),
        ({"hide": "entity"}, r"hide=entity, and .*p was prepared with hide=word"),
        ({"vocabulary": 300}, r"vocabulary=300, and .*p was prepared with vocabulary=200"),
        ({"tokenizer": str(tmp_path / "other")}, r"tokenizer=.*other, and .* with tokenizer=the one that was trained"),
    ):
        with pytest.raises(UserError, match=message):
            text.pretrain(str(tmp_path / "p"), tmp_path / "run", settings=with_overrides(SMALL, change), console=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(UserError, match="stands beside other data"):
        text.pretrain([str(tmp_path / "p"), str(corpus)], tmp_path / "run", console=False)
    with pytest.raises(UserError, match=r"holds another preparation: slots=32 \(now 64\)"):
        text.prepare(corpus / "d.jsonl", tmp_path / "p", settings=with_overrides(SMALL, {"slots": 64}), workers=1)
    with pytest.raises(UserError, match="is prepared already"):
        text.prepare(tmp_path / "p", tmp_path / "q", workers=1)
    with pytest.raises(UserError, match="which `unmask pretrain text` alone reads"):
        resolve([str(tmp_path / "p")], tmp_path)


def test_files_at_urls_are_read_as_files(corpus, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(f"{corpus}/", "/bucket/", recursive=True)
    try:
        text.prepare("memory://bucket", tmp_path / "url", settings=SMALL, workers=1)
        text.prepare(f"file://{corpus}/*", tmp_path / "file", settings=SMALL, workers=1)
        with pytest.raises(UserError, match="in this process's memory"):
            text.prepare("memory://bucket", tmp_path / "x", settings=SMALL, workers=2)
        one, two = TokenCache.open(tmp_path / "url"), TokenCache.open(tmp_path / "file")
    finally:
        memory.rm("/bucket", recursive=True)
    cache = raw(corpus, tmp_path / "raw")
    for other in (one, two):
        assert other.meta["report"]["examples"][0].endswith("/c.txt:181 not UTF-8 (byte 0xe9), left out")
        other.meta["report"]["examples"] = cache.meta["report"]["examples"]
        same(cache, other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: {"data": "s4://bucket/a.jsonl"}, "no kind of store is called 's4'"),
        (lambda d: {"data": "s3:/bucket/a.jsonl"}, "A URL has two slashes"),
        (lambda d: {"data": "memory://nowhere/a.jsonl"}, "memory://nowhere/a.jsonl: no such file"),
        (lambda d: {"data": "hf:org/name"}, r"hf://datasets/org/name/\*\*"),
        (lambda d: {"workers": 0}, "0: nobody to do the work"),
        (lambda d: {"engine": "dask"}, "engine=dask"),
        (lambda d: {"data": (d / "x.csv", "id,words\n1,a b\n")}, "no text column among id, words"),
        (lambda d: {"data": (d / "x.jsonl", '{"text": "a"}\n' * 400 + "{")}, r"x.jsonl:401: not JSON"),
        (lambda d: {"out": (d / "full" / "mine.txt", "precious")}, "it holds mine.txt"),
        (lambda d: {"out": (d / "full", "a file")}, "is not a folder"),
        (lambda d: {"out": "data.txt/x"}, "is not a folder"),
    ],
)
def test_what_cannot_be_prepared_is_said(tmp_path, monkeypatch, make, message):
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("some words of a text\n\n" * 50)
    given = make(tmp_path)
    for name in ("data", "out"):
        if isinstance(given.get(name), tuple):
            path, content = given[name]
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
            given[name] = path if name == "data" else tmp_path / "full"
    given = {"data": "data.txt", "out": tmp_path / "out", "settings": SMALL, "workers": 1} | given
    with pytest.raises(UserError, match=message):
        text.prepare(given.pop("data"), given.pop("out"), **given)


def test_a_store_whose_package_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=r"needs the package s3fs\n  Run: pip install s3fs"):
        text.prepare("s3://bucket/a.jsonl", tmp_path / "p", workers=1)


def test_a_worker_that_was_killed_leaves_no_half_of_a_shard(corpus, tmp_path, monkeypatch):
    """It is not the run that goes on which finds it, but the one whose worker it was."""

    def with_half(self, *given):
        (tmp_path / "p" / "shards" / ".000000.tokens.bin.host.1.new").write_bytes(b"half")
        return sharded(self, *given)

    sharded = preparing.Preparation.sharded
    monkeypatch.setattr(preparing.Preparation, "sharded", with_half)
    text.prepare(corpus / "a.txt", tmp_path / "p", settings=SMALL, workers=1)
    assert not list((tmp_path / "p" / "shards").glob(".*"))


def test_data_that_changes_meanwhile_is_refused(tmp_path, monkeypatch):
    data = tmp_path / "a.txt"
    data.write_text("\n\n".join(f"{' '.join(WORDS * 3)} {i}" for i in range(60)))

    scanned = preparing.Preparation.sharded
    monkeypatch.setattr(
        preparing.Preparation, "sharded", lambda s, *a: (data.write_text("no more " * 99), scanned(s, *a))
    )
    with pytest.raises(UserError, match="changed while it was prepared"):
        text.prepare(data, tmp_path / "p", settings=SMALL, workers=1)


def test_arrays_one_behind_another_are_one():
    parts = [np.arange(3), np.zeros(0, int), np.arange(3, 10), np.arange(10, 11)]
    joined, whole = Joined(parts), np.arange(11)
    assert len(joined) == 11
    for start in range(12):
        for stop in range(12):
            np.testing.assert_array_equal(joined[start:stop], whole[start:stop])


KILLED = """
import sys
from unmask import text
from unmask.modalities.text.tokens import portions
from unmask.modalities.text.recipes import TextSettings, with_overrides
portions.LEAST = 200_000
settings = with_overrides(TextSettings(), {"vocabulary": 2000, "slots": 64, "batch_slots": 64})
text.prepare(sys.argv[1], sys.argv[2], settings=settings, workers=2, engine=sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.skipif(not RAY, reason="no ray"))])
def test_sigkill_of_a_worker_and_of_all_changes_no_byte(tmp_path, engine):
    import psutil

    from unmask.modalities.text.reading.documents import write_corpus

    write_corpus(tmp_path / "docs.jsonl")
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(out: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", KILLED, str(tmp_path / "docs.jsonl"), str(tmp_path / out), engine]
        return subprocess.Popen(words, env=given)

    def shards(out: str) -> int:
        return len(list((tmp_path / out / "index").glob("*.json")))

    def wait_for(process: subprocess.Popen[bytes], out: str, count: int) -> None:
        until = time.monotonic() + 240
        while shards(out) < count:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)

    whole = start("whole")
    assert whole.wait(300) == 0
    process = start("killed")
    wait_for(process, "killed", 5)
    sign = "unmask.engines.local" if engine == "local" else "ray::_work"
    workers = [p for p in psutil.Process(process.pid).children(recursive=True) if sign in " ".join(p.cmdline())]
    assert workers
    workers[0].kill()
    wait_for(process, "killed", 15)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for other in family:
        if other.is_running():
            other.kill()
    assert shards("killed") >= 15
    again = start("killed")
    assert again.wait(300) == 0
    assert files(tmp_path / "whole") == files(tmp_path / "killed")
