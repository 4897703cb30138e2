"""models/english: a run that goes on where it was stopped, and the package that is made of it."""

import base64
import gzip
import hashlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from text_corpus import SENTENCES
from unmask.plugins import installed_model

HERE = Path(__file__).resolve().parents[3] / "models" / "english"
RECIPE = """
width = 32
layers = 1
heads = 2
slots = 32
vocabulary = 300
sentences = 0.5
[train]
steps = {steps}
batch_slots = 256
log_every = 1
checkpoint_every = 1
"""


SOURCES = """
[[source]]
file = "some.jsonl.gz"
title = "300 paragraphs of a test"
licence = "CC0"
spdx = "CC0-1.0"
address = "nowhere"
"""


def command(folder, *more):
    paths = [
        "--corpus",
        folder / "corpus",
        "--sources",
        folder / "sources.toml",
        "--recipe",
        folder / "recipe.toml",
        "--build",
        folder / "build",
    ]
    return [sys.executable, str(HERE / "make_model.py"), *map(str, paths), "--out", str(folder / "dist"), *more]


def begun(place):
    """A corpus, what is said of it, and a recipe."""
    (place / "corpus").mkdir()
    with gzip.open(place / "corpus" / "some.jsonl.gz", "wt", encoding="utf-8") as file:
        for i in range(300):
            text = f"{SENTENCES[i % 5]} Paragraph {i}. {SENTENCES[(i * 3 + 1) % 5]}"
            file.write(json.dumps({"text": text}) + "\n")
    (place / "recipe.toml").write_text(RECIPE.format(steps=4))
    (place / "sources.toml").write_text(SOURCES)
    return place


@pytest.fixture
def folder(tmp_path):
    return begun(tmp_path)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A run of four steps, packed."""
    place = begun(tmp_path_factory.mktemp("packed"))
    subprocess.run(command(place), check=True)
    return place


@pytest.fixture
def finished(packed, tmp_path):
    """A copy of it, to do something to."""
    return shutil.copytree(packed, tmp_path / "finished")


def test_a_stopped_run_goes_on_and_is_packed(folder):
    (folder / "recipe.toml").write_text(RECIPE.format(steps=100_000))
    began = subprocess.Popen(command(folder, "--minutes", "10"))
    checkpoints = folder / "build" / "run" / "checkpoints"
    deadline = time.monotonic() + 120
    while not (checkpoints.is_dir() and any(checkpoints.iterdir())):
        assert began.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for process in psutil.Process(began.pid).children(recursive=True):
        process.kill()  # the run, as where the machine goes down
    began.kill()
    began.wait()
    assert not (folder / "dist").exists()
    steps = max(int(p.name.split("-")[-1]) for p in checkpoints.iterdir() if p.name.split("-")[-1].isdigit())
    (folder / "recipe.toml").write_text(RECIPE.format(steps=steps + 3))
    done = subprocess.run(command(folder), capture_output=True, text=True, check=True)
    assert "packed:" in done.stdout
    log = (folder / "build" / "run" / "metrics.jsonl").read_text().splitlines()
    taken = [row["step"] for row in map(json.loads, log) if row["kind"] == "train"]
    assert taken[0] == 1  # one run: its beginning is still in its log
    assert taken[-1] == steps + 3


def trained_a_step(folder, began):
    """The log of the run that `began` has started, once a step of it was taken."""
    log = folder / "build" / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and '"train"' in log.read_text()):
        assert began.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_with_a_checkpoint(folder, number):
    (folder / "recipe.toml").write_text(RECIPE.format(steps=100_000))
    began = subprocess.Popen(command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = trained_a_step(folder, began)
    began.send_signal(number)
    out, said = began.communicate(timeout=60)
    assert "not finished: the same command goes on" in out, said
    assert "Traceback" not in said
    ended = json.loads(log.read_text().splitlines()[-1])
    assert (ended["kind"], ended["stopped"]) == ("end", "signal")  # the run itself has ended, in order


def test_minutes_end_a_call_not_the_run(folder):
    (folder / "recipe.toml").write_text(RECIPE.format(steps=100_000))
    done = subprocess.run(command(folder, "--minutes", "0.1"), capture_output=True, text=True, check=True)
    assert "not finished: the same command goes on" in done.stdout
    assert not (folder / "dist").exists()


def test_the_package_is_a_wheel_that_pip_installs_offline_and_load_finds(packed, tmp_path, monkeypatch):
    (wheel,) = (packed / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = archive.read("unmask_en-0.1.0.dist-info/RECORD").decode().splitlines()
        listed = dict(line.rsplit(",", 2)[:2] for line in record)
        for name in names:
            if not name.endswith("RECORD"):
                digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).decode().rstrip("=")
                assert listed[name] == f"sha256={digest}"
        card = archive.read("unmask_en-0.1.0.dist-info/METADATA").decode()
    assert sorted(listed) == sorted(names)
    for said in ("License-Expression: CC0-1.0", "300 paragraphs of a test: CC0"):
        assert said in card
    assert "# unmask-en\n" in card
    assert "unmask evaluate unmask-en held-out.txt" in card
    assert 'pipeline("fill-mask", str(unmask_en.folder()))' in card
    assert "From prepared" not in card
    assert "examples to train on" in card
    assert "| figure | model | most frequent token |" in card
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True)
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    try:
        there = installed_model("unmask-en")
        assert there == site / "unmask_en" / "model"
        assert "300 paragraphs of a test" in (there / "README.md").read_text()
        import unmask

        (found,) = unmask.load("unmask-en").fill("The quick brown [MASK] jumps.", top=3)
        assert len(found["slots"][0]["candidates"]) == 3
    finally:
        sys.modules.pop("unmask_en", None)


def test_what_is_wrong_is_said(folder):
    def refused(*more):
        done = subprocess.run([*command(folder), *more], capture_output=True, text=True)
        assert done.returncode == 2
        return done.stderr

    assert "no such folder" in refused("--corpus", str(folder / "nowhere"))
    assert "expected more than 0" in refused("--minutes", "0")
    assert "none of some.jsonl.gz" in refused("--corpus", str(folder))
    (folder / "sources.toml").write_text(SOURCES + 'sha256 = "0123"\n')
    assert "not the file that" in refused()
    (folder / "sources.toml").write_text(SOURCES.replace("licence", "license"))
    assert "source 1 does not say its licence" in refused()
    (folder / "sources.toml").write_text(SOURCES.replace("[[source]]", "[source]"))
    assert "write [[source]] over each" in refused()
    (folder / "sources.toml").write_text(SOURCES)
    (folder / "corpus" / "some.jsonl.gz").write_bytes(b"not gzip")
    (folder / "corpus" / "private.txt").write_text("A secret.")
    said = refused()
    assert "private.txt" in said  # left out
    assert "Traceback" not in said


def test_a_finished_model_is_not_packed_as_that_of_another_recipe(finished):
    recipe = RECIPE.format(steps=4)
    (finished / "recipe.toml").write_text(recipe.replace("width = 32", "width = 64"))
    done = subprocess.run(command(finished), capture_output=True, text=True)
    assert done.returncode == 2
    assert "begun with another recipe: width was 32 and is 64" in done.stderr
    # More steps, and a call that ends before they are taken: the model of fewer is not packed for it.
    (finished / "recipe.toml").write_text(RECIPE.format(steps=100_000))
    short = subprocess.run(command(finished, "--minutes", "0.1"), capture_output=True, text=True, check=True)
    assert "not finished" in short.stdout
    assert "packed:" not in short.stdout
    log = (finished / "build" / "run" / "metrics.jsonl").read_text().splitlines()
    steps = max(row["step"] for row in map(json.loads, log) if row["kind"] == "train") + 2
    (finished / "recipe.toml").write_text(RECIPE.format(steps=steps))
    again = subprocess.run(command(finished), capture_output=True, text=True, check=True)
    assert "packed:" in again.stdout
    log = (finished / "build" / "run" / "metrics.jsonl").read_text().splitlines()
    assert [row["step"] for row in map(json.loads, log) if row["kind"] == "train"][-1] == steps


def test_a_recipe_that_was_mistyped_can_be_mended(folder):
    (folder / "recipe.toml").write_text(RECIPE.format(steps=4).replace("layers", "laysers"))
    done = subprocess.run(command(folder), capture_output=True, text=True)
    assert done.returncode == 2
    assert "laysers" in done.stderr
    (folder / "recipe.toml").write_text(RECIPE.format(steps=4))
    assert "packed:" in subprocess.run(command(folder), capture_output=True, text=True, check=True).stdout


def test_ctrl_c_in_a_terminal_ends_the_run_with_a_checkpoint(folder):
    """A terminal sends it to all processes of the group."""
    (folder / "recipe.toml").write_text(RECIPE.format(steps=100_000).replace("checkpoint_every = 1\n", ""))
    began = subprocess.Popen(
        command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    log = trained_a_step(folder, began)
    os.killpg(began.pid, signal.SIGINT)
    out, said = began.communicate(timeout=60)
    assert "not finished: the same command goes on" in out, said
    assert "Traceback" not in said
    ended = json.loads(log.read_text().splitlines()[-1])
    assert (ended["kind"], ended["stopped"]) == ("end", "signal")
    assert any((folder / "build" / "run" / "checkpoints").iterdir())


def test_a_recipe_of_fewer_steps_than_were_taken_leaves_the_model(finished):
    kept = {
        path: path.read_bytes()
        for path in (finished / "build" / "run" / "model.safetensors", finished / "build" / "recipe.json")
    }
    (finished / "recipe.toml").write_text(RECIPE.format(steps=3))
    done = subprocess.run(command(finished), capture_output=True, text=True)
    assert (done.returncode, "its run has taken 4 steps, and the recipe asks for 3" in done.stderr) == (2, True), (
        done.stderr
    )
    assert {path: path.read_bytes() for path in kept} == kept
