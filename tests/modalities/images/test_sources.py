"""Reading pictures: every container and kind, and what is said of the broken ones."""

import gzip
import io
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from tiny_images import bars, class_folder
from unmask.errors import UserError
from unmask.modalities.images.network.batches import as_floats, channel_statistics
from unmask.modalities.images.reading.from_files import read_idx
from unmask.modalities.images.reading.sources import read_images


def encoded(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


def write_idx(path, array):
    head = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.astype("u1").tobytes()))


@pytest.mark.parametrize("depth", [np.uint8, np.uint16, np.float32, np.int64, bool])
@pytest.mark.parametrize("shape", [(5, 6, 8), (5, 6, 8, 1), (5, 6, 8, 3), (5, 3, 6, 8), (5, 6, 8, 4)])
def test_arrays_of_any_depth_and_order(depth, shape):
    array = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(depth)
    found = read_images(array)
    assert found.size == (6, 8)
    assert found.channels == (1 if len(shape) == 3 else min(shape[1], shape[3]))
    values = as_floats(found.pixels)
    assert values.shape == (5, found.channels, 6, 8)
    expected = array if array.ndim == 4 else array[..., None]
    expected = expected if expected.shape[1] == 3 else expected.transpose(0, 3, 1, 2)
    full = {np.uint8: 255, np.uint16: 65535, np.float32: 1, np.int64: 255, bool: 1}[depth]
    np.testing.assert_allclose(values, expected.astype(float) / full, rtol=1e-6)


def test_tensors_and_labels_of_any_kind():
    pixels, labels = bars(9)
    found = read_images((torch.from_numpy(pixels), np.array(["b", "a", "c"])[labels]))
    assert found.classes == ["a", "b", "c"]
    assert found.labels.tolist()[:3] == [1, 0, 2]


def test_nan_is_missing_and_impossible_arrays_are_named():
    bad = np.ones((4, 5, 6), np.float32)
    bad[2, 1, 3] = np.nan
    found = read_images(bad)
    assert np.argwhere(found.missing).tolist() == [[2, 1, 3]]
    assert found.pixels[2, 1, 3, 0] == 0
    assert "missing, in 1 of 4 pictures" in found.notes[0]
    assert read_images(np.arange(120).reshape(4, 5, 6), nodata=7).missing.sum() == 1
    bad[2, 1, 3] = np.inf
    with pytest.raises(UserError, match="picture 2 has inf at row 1, column 3, channel 0"):
        read_images(bad)
    with pytest.raises(UserError, match="shape"):
        read_images(np.zeros((3, 4)))
    with pytest.raises(UserError, match="from -1 to"):
        read_images(np.full((2, 4, 5), -1))
    with pytest.raises(UserError, match="3 pictures and 2 labels"):
        read_images((np.zeros((3, 4, 5)), [0, 1]))


@pytest.mark.parametrize(
    ("shape", "channels", "expected"),
    [
        ((2, 8, 12, 12), None, (12, 12, 8)),
        ((2, 12, 12, 8), None, (12, 12, 8)),
        ((2, 12, 12, 200), None, (12, 12, 200)),
        ((2, 8, 10, 12), 8, (10, 12, 8)),
        ((2, 10, 12, 8), 8, (10, 12, 8)),
    ],
)
def test_many_channels_are_found_by_the_square_or_by_their_count(shape, channels, expected):
    assert read_images(np.zeros(shape, np.uint8), channels=channels).pixels.shape[1:] == expected


def test_arrays_that_can_be_read_in_two_ways_are_refused():
    with pytest.raises(UserError, match="8 or 12 channels"):
        read_images(np.zeros((2, 8, 10, 12), np.uint8))
    with pytest.raises(UserError, match="one picture in colour") as error:
        read_images(np.zeros((32, 32, 3), np.uint8))
    assert "array[None]" in str(error.value)


def test_a_list_of_arrays_is_brought_to_one_form():
    grey, colour = np.full((6, 8), 7, np.uint8), np.zeros((3, 6, 8), np.uint8)
    found = read_images([grey, torch.from_numpy(colour)])
    assert found.pixels.shape == (2, 6, 8, 3)
    assert (found.pixels[0] == 7).all()
    assert read_images([grey, grey], channels=3).channels == 3
    assert read_images([grey, colour[:, :5, :5]], size=5).pixels.shape == (2, 5, 5, 3)
    with pytest.raises(UserError, match="picture 1 has 5 x 5"):
        read_images([grey, colour[:, :5, :5]])
    with pytest.raises(UserError, match="picture 1 float32"):
        read_images([grey, grey.astype(np.float32)])


def test_dark_wide_numbers_have_the_depth_asked_for():
    dark = np.full((2, 5, 6), 200, np.int64)
    assert [read_images(dark, depth=d).depth for d in (None, "uint8", "uint16")] == ["uint8", "uint8", "uint16"]
    with pytest.raises(UserError, match="to 900"):
        read_images(np.full((2, 5, 6), 900), depth="uint8")


def test_class_folders(tmp_path):
    found = read_images(class_folder(tmp_path, 9))
    assert found.classes == ["across", "down", "square"]
    assert found.names[0] == "across/000.png"
    pixels, _ = bars(9)
    assert np.array_equal(found.pixels[0, :, :, 0], pixels[0])
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_linked_class_folders_are_read_and_circles_end(tmp_path):
    class_folder(tmp_path / "real", 9)
    (tmp_path / "data").mkdir()
    for name in ("across", "down"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "real" / name)
    (tmp_path / "real" / "down" / "up").symlink_to(tmp_path / "data")
    found = read_images(tmp_path / "data")
    assert found.classes == ["across", "down"]
    assert len(found) == 6


def test_a_flat_folder_and_a_folder_of_parts(tmp_path):
    class_folder(tmp_path / "flat" / "one", 3)
    flat = read_images(sorted((tmp_path / "flat").rglob("*.png")))
    assert flat.labels is None
    class_folder(tmp_path / "data" / "train", 9)
    class_folder(tmp_path / "data" / "val", 6, seed=1)
    parts = read_images(tmp_path / "data")
    assert parts.classes == ["across", "down", "square"]
    assert len(parts.part("validation")) == 6
    assert all(name.startswith("val") for name in parts.part("validation").names)


def test_idx_folder_with_train_and_test(tmp_path):
    for part, count in (("train", 6), ("t10k", 3)):
        pixels, labels = bars(count)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", labels)
    found = read_images(tmp_path)
    assert len(found) == 9
    assert len(found.part("test")) == 3
    assert np.array_equal(read_images(tmp_path / "train-images-idx3-ubyte.gz").labels, bars(6)[1])
    cut = (tmp_path / "train-images-idx3-ubyte.gz").read_bytes()
    (tmp_path / "cut.idx").write_bytes(gzip.decompress(cut)[:-5])
    with pytest.raises(UserError, match="its header says"):
        read_idx(tmp_path / "cut.idx")


def test_parts_of_other_classes_are_numbered_together(tmp_path):
    pixels, _ = bars(4)
    for part, labels in (("train", [0, 1, 2, 0]), ("t10k", [1, 2, 2, 1])):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.array(labels))
    found = read_images(tmp_path)
    assert found.part("test").labels.tolist() == [1, 2, 2, 1]
    assert found.classes == ["0", "1", "2"]
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", bars(4, (9, 12))[0])
    with pytest.raises(UserError, match="pictures of 2 sizes"):
        read_images(tmp_path)
    assert read_images(tmp_path, size=8).size == (8, 8)


@pytest.mark.parametrize("names", ["x_train y_train x_test y_test", "train_images train_labels val_images val_labels"])
def test_an_npz_of_parts_keeps_them(tmp_path, names):
    pixels, labels = bars(9)
    x, y, x_test, y_test = names.split()
    np.savez(tmp_path / "a.npz", **{x_test: pixels[6:], y_test: labels[6:, None], y: labels[:6], x: pixels[:6]})
    found = read_images(tmp_path / "a.npz")
    train, rest = found.part("train"), found.part("validation", "test")
    assert np.array_equal(train.pixels[:, :, :, 0], pixels[:6])
    assert train.labels.tolist() == labels[:6].tolist()
    assert rest.labels.tolist() == labels[6:].tolist()


def test_an_npz_of_unrelated_pictures_names_them(tmp_path):
    pixels, _ = bars(3)
    np.savez(tmp_path / "a.npz", scans=pixels, masks=pixels)
    with pytest.raises(UserError, match="scans, masks"):
        read_images(tmp_path / "a.npz")


def test_npy_npz_and_parquet(tmp_path):
    pixels, labels = bars(6)
    np.save(tmp_path / "a.npy", pixels)
    np.savez(tmp_path / "a.npz", x=pixels, y=labels)
    rows = [{"bytes": encoded(p), "path": None} for p in pixels]
    pq.write_table(pa.table({"image": rows, "label": labels.tolist()}), tmp_path / "a.parquet")
    for name in ("a.npy", "a.npz", "a.parquet"):
        found = read_images(tmp_path / name)
        assert np.array_equal(found.pixels[..., 0], pixels)
        if name != "a.npy":
            assert np.array_equal(found.labels, labels)
    with pytest.raises(UserError, match="no column 'picture'"):
        read_images(tmp_path / "a.parquet", column="picture")
    (tmp_path / "idx_a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes())
    assert len(read_images(tmp_path / "idx_a.parquet")) == 6
    pq.write_table(pa.table({"image": rows, "label": [0, 1, None, 0, 1, 0]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match="row 2 has no label"):
        read_images(tmp_path / "b.parquet")
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-40])
    with pytest.raises(UserError, match="cannot be read"):
        read_images(tmp_path / "a.npz")


def test_every_mode_is_brought_to_one_form(tmp_path):
    """CMYK, alpha, palettes, 16 bits, one bit and float beside each other."""
    red = Image.new("RGB", (8, 6), (200, 30, 40))
    red.convert("CMYK").save(tmp_path / "cmyk.jpg")
    red.convert("P").save(tmp_path / "palette.png")
    Image.new("RGBA", (8, 6), (200, 30, 40, 0)).save(tmp_path / "transparent.png")
    Image.new("LA", (8, 6), (10, 255)).save(tmp_path / "grey_alpha.png")
    Image.new("1", (8, 6), 1).save(tmp_path / "bit.png")
    Image.fromarray(np.full((6, 8), 40_000, np.uint16)).save(tmp_path / "deep.png")
    found = read_images(tmp_path)
    assert found.depth == "float32"  # 8 and 16 bits together
    value = dict(zip([n.split(".")[0] for n in found.names], found.pixels.mean((1, 2)), strict=True))
    np.testing.assert_allclose(value["palette"], np.array([200, 30, 40]) / 255, atol=0.01)
    np.testing.assert_allclose(value["cmyk"], np.array([200, 30, 40]) / 255, atol=0.03)
    np.testing.assert_allclose(value["transparent"], 1.0)  # on white
    np.testing.assert_allclose(value["deep"], 40_000 / 65_535, rtol=1e-5)
    np.testing.assert_allclose(value["grey_alpha"], 10 / 255, rtol=1e-5)
    deep = read_images(tmp_path / "deep.png")
    assert deep.depth == "uint16"
    assert (deep.pixels == 40_000).all()


def test_pictures_that_are_turned_and_pictures_of_one_bit_are_said(tmp_path):
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    exif = Image.Exif()
    for number, tag in enumerate((1, 3, 6)):
        exif[0x0112] = tag
        Image.fromarray(pixels).save(tmp_path / f"{number}.png", exif=exif)
    Image.fromarray(pixels > 99).save(tmp_path / "bits.png")
    notes = read_images(tmp_path).notes
    assert "2 pictures: turned as EXIF says" in notes
    assert "1 pictures: one bit as 0 and 255" in notes


def test_turned_pictures_stand_upright(tmp_path):
    picture = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "turned.png", exif=exif)
    assert read_images(tmp_path).size == (6, 4)


def test_mixed_sizes_need_a_size(tmp_path):
    class_folder(tmp_path, 3)
    Image.new("L", (20, 9)).save(tmp_path / "across" / "wide.png")
    with pytest.raises(UserError, match="pictures of 2 sizes") as error:
        read_images(tmp_path)
    assert "across/wide.png has 20 x 9" in str(error.value)
    assert "image_size=" in str(error.value)
    assert read_images(tmp_path, size=(10, 14)).size == (10, 14)


def test_broken_files_are_named_counted_and_skipped_or_refused(tmp_path):
    class_folder(tmp_path, 6)
    (tmp_path / "down" / "empty.png").write_bytes(b"")
    (tmp_path / "down" / "text.jpg").write_text("not a picture")
    whole = (tmp_path / "across" / "000.png").read_bytes()
    (tmp_path / "square" / "cut.png").write_bytes(whole[: len(whole) // 2])
    found = read_images(tmp_path)
    assert len(found) == len(found.labels) == 6
    reasons = dict(found.skipped)
    assert set(reasons) == {"down/empty.png", "down/text.jpg", "square/cut.png"}
    assert reasons["down/empty.png"] == "empty (0 bytes)"
    assert "known format" in reasons["down/text.jpg"]
    with pytest.raises(UserError, match="strict=True") as error:
        read_images(tmp_path, strict=True)
    assert "empty.png" in str(error.value)
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "a.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"none of 1 pictures could be read .*0 bytes"):
        read_images(tmp_path / "only")


def test_worker_processes_give_the_same(tmp_path):
    class_folder(tmp_path, 90)
    (tmp_path / "across" / "empty.png").write_bytes(b"")
    alone, shared = (read_images(tmp_path, size=10, workers=n) for n in (1, 2))
    assert alone.names == shared.names
    assert np.array_equal(alone.pixels, shared.pixels)
    assert alone.skipped == shared.skipped


def test_what_is_not_there_or_holds_nothing(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_images(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no pictures in it"):
        read_images(tmp_path)
    (tmp_path / "a.xyz").write_text("?")
    with pytest.raises(UserError, match="not a kind of file"):
        read_images(tmp_path / "a.xyz")


def test_channels_and_statistics():
    grey = read_images(np.full((2, 4, 5), 51, np.uint8), channels=3)
    assert grey.pixels.shape == (2, 4, 5, 3)
    mean, deviation = channel_statistics(grey)
    assert mean == pytest.approx((0.2,) * 3)
    assert deviation == (1.0,) * 3
    colour = np.zeros((1, 2, 2, 3), np.uint8)
    colour[..., 1] = 100
    assert int(read_images(colour, channels=1).pixels[0, 0, 0, 0]) == 59


def test_files_have_one_or_three_channels(tmp_path):
    with pytest.raises(UserError, match="channels=2"):
        read_images(class_folder(tmp_path, 3), channels=2)


def test_statistics_are_of_at_most_as_many_pictures():
    pixels = np.full((5, 4, 5), 100, np.float32)
    pixels[::2] = np.array([0, 3, 6])[:, None, None]
    mean, deviation = channel_statistics(read_images(pixels), most=3)
    assert mean == pytest.approx((3.0,))
    assert deviation == pytest.approx((6**0.5,))


def test_floats_are_resized_within_their_own_range():
    step = np.zeros((1, 9, 9), np.float32)
    step[:, :, 4:] = 1
    found = read_images(step, size=30).pixels
    assert (found.min(), found.max()) == (0, 1)
