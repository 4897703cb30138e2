"""Sets larger than memory: decoded once into shards, resumed after a kill, read as arrays are."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unmask.errors import UserError
from unmask.modalities.images.reading import lazy as room
from unmask.modalities.images.reading.decode import Form, PictureFiles

FORM = Form(height=8, width=8, channels=3, depth="uint8")


def build(folder: Path, sources: list[str], counts: list[int], form: Form, *, workers: int, **how):
    files = PictureFiles(sources=sources, counts=np.array(counts), form=form, workers=workers)
    return room.build(folder, files, **how)


def photos(folder: Path, count: int = 30, seed: int = 0) -> list[str]:
    """Pictures of two sizes, in two class folders."""
    rng = np.random.default_rng(seed)
    out = []
    for n in range(count):
        path = folder / ("cat" if n % 2 else "dog") / f"{n:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        side = 16 if n % 3 else 12
        Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=np.uint8)).save(path)
        out.append(str(path))
    return out


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(room, "SHARD_BYTES", 8 * 8 * 3 * 7)


def test_shards_hold_what_decoding_gives_and_are_read_as_arrays_are(tmp_path):
    files = photos(tmp_path / "p")
    found, broken = build(tmp_path / "s", files, [1] * 30, FORM, workers=1)
    expected = np.stack([room.decode(f, FORM)[0].pixels for f in files])
    pixels = found.pixels
    assert not broken
    assert len(list(found.folder.glob("*.bin"))) >= 4
    assert (pixels.shape, pixels.dtype, pixels.nbytes) == (expected.shape, expected.dtype, expected.nbytes)
    assert found.missing is None
    for which in (3, slice(2, 20, 5), np.array([29, 0, 7]), np.arange(30) % 4 == 1, np.array([], int)):
        np.testing.assert_array_equal(pixels[which], expected[which])
    np.testing.assert_array_equal(pixels.part(np.array([5, 4, 9]))[1:], expected[[4, 9]])


def test_done_shards_are_found_again_and_other_files_or_forms_are_other_shards(tmp_path, monkeypatch):
    files = photos(tmp_path / "p")
    first, _ = build(tmp_path / "s", files, [1] * 30, FORM, workers=1)
    monkeypatch.setattr(room, "_shard", lambda *_: pytest.fail("decoded again"))
    assert build(tmp_path / "s", files, [1] * 30, FORM, workers=1)[0].folder == first.folder
    monkeypatch.undo()
    smaller = Form(height=4, width=4, channels=3, depth="uint8")
    assert build(tmp_path / "s", files, [1] * 30, smaller, workers=1)[0].folder != first.folder
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(files[4])
    changed, _ = build(tmp_path / "s", files, [1] * 30, FORM, workers=1)
    assert changed.folder != first.folder
    assert not changed.pixels[4].any()


def test_a_broken_file_leaves_no_hole_and_its_reason(tmp_path):
    files = photos(tmp_path / "p")
    Path(files[9]).write_bytes(Path(files[9]).read_bytes()[:200])
    found, broken = build(tmp_path / "s", files, [1] * 30, FORM, workers=1)
    assert list(broken) == [9]
    expected = np.stack([room.decode(f, FORM)[0].pixels for i, f in enumerate(files) if i != 9])
    np.testing.assert_array_equal(found.pixels[:], expected)


def test_missing_pixels_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    files, gone = [], np.zeros((12, 8, 8), bool)
    for n in range(12):
        pixels = rng.random((8, 8)).astype(np.float32)
        if n % 3 == 0:
            gone[n, : n // 3 + 1] = True
        pixels[gone[n]] = np.nan
        files.append(str(tmp_path / f"{n:02d}.tif"))
        Image.fromarray(pixels).save(files[-1])
    form = Form(height=8, width=8, channels=1, depth="float32")
    found, _ = build(tmp_path / "s", files, [1] * 12, form, workers=1)
    np.testing.assert_array_equal(found.missing[:], gone)
    np.testing.assert_array_equal(found.missing[:].any((1, 2)), gone.any((1, 2)))
    assert found.missing.mean() == pytest.approx(gone.mean())
    assert not found.missing.all((1, 2)).any()


def test_damage_is_found_when_a_picture_is_read(tmp_path):
    found, _ = build(tmp_path / "s", photos(tmp_path / "p"), [1] * 30, FORM, workers=1)
    path = found.folder / "00001.bin"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    start = int(found.starts[1])
    found.pixels[start + 1]
    with pytest.raises(UserError, match=r"00001\.bin: example 0 is not as it was written"):
        found.pixels[start]


def test_too_little_disk_is_said_before(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("D", (), {"free": 1000})())
    with pytest.raises(UserError, match="GB are free"):
        build(tmp_path / "s", photos(tmp_path / "p"), [1] * 30, FORM, workers=1)


SLOW = """
import sys, time
from pathlib import Path
from unmask.modalities.images.reading import lazy
from unmask.modalities.images.reading.decode import Form, PictureFiles
import numpy as np
lazy.SHARD_BYTES = 8 * 8 * 3 * 7
real = lazy.decode
def slowly(*given):
    time.sleep(0.05)
    return real(*given)
lazy.decode = slowly
files = sorted(map(str, Path(sys.argv[1]).rglob("*.png")))
form, counts = Form(height=8, width=8, channels=3, depth="uint8"), np.ones(len(files), int)
lazy.build(Path(sys.argv[2]), PictureFiles(sources=files, counts=counts, form=form, workers=2))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and record locks are of POSIX")
def test_a_killed_builder_leaves_whole_shards_no_lock_and_no_workers(tmp_path):
    photos(tmp_path / "p")
    files = sorted(map(str, (tmp_path / "p").rglob("*.png")))
    builder = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path / "p"), str(tmp_path / "s")])
    while len(list((tmp_path / "s").glob("*/0*.json"))) < 2 and builder.poll() is None:
        time.sleep(0.01)
    with pytest.raises(UserError, match=f"process {builder.pid} is decoding pictures"):
        build(tmp_path / "s", files, [1] * 30, FORM, workers=1)
    children = _children(builder.pid)
    os.kill(builder.pid, signal.SIGKILL)
    builder.wait()
    whole = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").glob("*/0*.json")}
    assert len(whole) < 5
    told: list[str] = []
    found, _ = build(tmp_path / "s", files, [1] * 30, FORM, workers=1, say=told.append)
    assert "decoded already" in told[0]
    assert all(p.stat().st_mtime_ns == then for p, then in whole.items())
    expected = np.stack([room.decode(f, FORM)[0].pixels for f in files])
    np.testing.assert_array_equal(found.pixels[:], expected)
    deadline = time.monotonic() + 10
    while any(map(_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children or sys.platform != "linux"
    assert not any(map(_alive, children))


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(p) for p in path.read_text().split()] if path.exists() else []


def _alive(pid: int) -> bool:
    """A zombie is dead: in a container nobody may reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def read(folder: Path, store=None):
    from unmask.modalities.images.reading.sources import read_images

    return read_images(str(folder), size=8, workers=1, store=store)


@pytest.mark.parametrize("kept", ["disk", "streamed"])
def test_a_set_that_is_not_in_memory_reads_as_one_that_is(tmp_path, kept):
    files = photos(tmp_path / "p")
    Path(files[8]).write_bytes(Path(files[8]).read_bytes()[:300])
    from unmask.modalities.images.network.features import settled
    from unmask.modalities.images.reading.lazy import PictureStore

    whole = read(tmp_path / "p")
    found = read(tmp_path / "p", PictureStore(folder=tmp_path / "s" if kept == "disk" else None, most=0))
    assert not isinstance(found.pixels, np.ndarray)
    pixels = found.pixels[:]
    there = settled(found)
    np.testing.assert_array_equal(pixels[there], whole.pixels)
    np.testing.assert_array_equal(found.labels[there], whole.labels)
    assert [n for n, t in zip(found.names, there, strict=True) if t] == whole.names
    assert found.skipped == whole.skipped
    part = found.take(np.array([3, 1]))
    np.testing.assert_array_equal(part.pixels, pixels[[3, 1]])


def test_a_run_from_disk_is_the_run_from_memory_bit_for_bit(tmp_path):
    import json

    from tiny_images import TINY
    from unmask.modalities.images.recipes import ImageSettings, with_overrides
    from unmask.modalities.images.uses.pretrain import pretrain

    photos(tmp_path / "p", 60)
    losses = []
    for store in ("memory", "disk"):
        settings = with_overrides(ImageSettings(), TINY | {"image_size": 12, "store": store, "steps": 4, "workers": 1})
        run = pretrain(str(tmp_path / "p"), tmp_path / store, settings=settings, console=False)
        lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        losses.append([line.get("loss", line.get("validation_loss")) for line in lines if line["kind"] != "start"])
    assert losses[0] == losses[1]
    assert (tmp_path / "disk" / "pictures").is_dir()


def test_streamed_embeddings_and_labels_are_those_from_memory(tmp_path, monkeypatch):
    import torch

    from tiny_images import TINY
    from unmask.modalities.images.classify import classifier
    from unmask.modalities.images.network.build import codec_config, new_model
    from unmask.modalities.images.network.folder import ImageFolder
    from unmask.modalities.images.reading.lazy import PictureStore
    from unmask.modalities.images.recipes import ImageSettings, with_overrides
    from unmask.modalities.images.uses import model as rooms

    files = photos(tmp_path / "p")
    Path(files[8]).write_bytes(Path(files[8]).read_bytes()[:300])
    settings = with_overrides(ImageSettings(), TINY)
    made = new_model(settings, codec_config(settings, (8, 8), 3, (0.5,) * 3, (0.2,) * 3))
    model = rooms.ImageModel(ImageFolder(model=made, depth="uint8"), torch.device("cpu"), "fp32")
    whole = model.embed(str(tmp_path / "p"))
    scores = model.evaluate(str(tmp_path / "p"), most=10)
    monkeypatch.setattr(rooms, "PASSING", PictureStore(folder=None, most=0))
    monkeypatch.setattr(rooms, "inference_rows", lambda _: 7)
    found = model.read(str(tmp_path / "p"), store=rooms.PASSING)
    streamed = model.embed(found)
    assert [name for name, _ in found.skipped] == ["dog/008.png"]
    np.testing.assert_allclose(streamed, whole, atol=1e-5)
    again = model.evaluate(str(tmp_path / "p"), most=10)
    assert again["loss"] == pytest.approx(scores["loss"], rel=1e-4)
    assert again["test_pictures"] <= scores["test_pictures"]
    net = classifier.ClassifierNet(made, 2)
    labelled = classifier.Classifier(model=model, net=net.eval(), classes=["cat", "dog"])
    monkeypatch.setattr(classifier, "PASSING", rooms.PASSING)
    at_once, really = [], labelled.objective.rows
    monkeypatch.setattr(labelled.objective, "rows", lambda names, p: at_once.append(len(names)) or really(names, p))
    rows = labelled.predict(str(tmp_path / "p"))
    assert max(at_once) <= 7, "predictions are made batch by batch"
    assert [r["name"] for r in rows] == [
        str(Path(f).relative_to(tmp_path / "p")) for f in sorted(files) if f != files[8]
    ]


def test_a_batch_is_made_of_a_few_pictures_at_a_time_and_is_the_same(monkeypatch):
    """Beside the batch itself no more than some pictures stand in memory: whole copies left holes that it no longer
    fitted in."""
    import torch

    from unmask.modalities.images.network import batches
    from unmask.modalities.images.network.augment import Augment
    from unmask.modalities.images.network.build import codec_config, new_model
    from unmask.modalities.images.recipes import ImageSettings
    from unmask.modalities.images.uses.pretrain import prepare
    from unmask.training.budget import _Live

    rng = np.random.default_rng(0)
    pixels = rng.random((40, 64, 64, 3)).astype(np.float32)
    pixels[3:30, :20, :33] = np.nan
    settings = ImageSettings(width=16, layers=1, heads=2, decoder_width=16, decoder_layers=1, decoder_heads=1)
    images = prepare(pixels, settings)
    model = new_model(settings, codec_config(settings, images.size, 3, (0.5,) * 3, (0.3,) * 3))
    rows = [[n] for n in range(40)]

    def made(part: float) -> tuple:
        monkeypatch.setattr(batches, "PART_BYTES", part)
        make = batches.batch_maker(model.codec, images, seed=0, augment=Augment(scale=(0.5, 1.0)))
        with _Live(model) as live:
            batch = make(rows, 40, 1)
        tensors = (*batch.values.values(), batch.segment, batch.position, batch.observed, batch.special, batch.unit)
        return batch, live.most / sum(t.numel() * t.element_size() for t in tensors)

    (whole, much), (parts, little) = made(1e9), made(2e5)
    assert not bool(whole.observed.all())
    assert torch.equal(whole.observed, parts.observed)
    assert torch.equal(whole.identity, parts.identity)
    torch.testing.assert_close(whole.values["patch"], parts.values["patch"], equal_nan=True, rtol=0, atol=2e-5)
    assert little < 2 < 3 < much
