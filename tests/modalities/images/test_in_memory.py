"""Pictures in memory are what their files are: equal, or refused alike."""

import io

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from tiny_images import bars
from unmask.errors import UserError
from unmask.modalities.images.reading.sources import read_images

PIXELS, NUMBERS = bars(12)
CLASSES = np.array(["across", "down", "square"])[NUMBERS]


@pytest.fixture
def paths(tmp_path):
    for number, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.png")
    return [str(p) for p in sorted(tmp_path.glob("*.png"))]


def opened(paths):
    return [Image.open(p) for p in paths]


def content(paths):
    return [open(p, "rb").read() for p in paths]


UNLABELLED = {
    "paths": lambda p: p,
    "an array of paths": np.array,
    "a series of paths": pd.Series,
    "a polars series of paths": pl.Series,
    "arrays": lambda p: list(PIXELS),
    "a generator": lambda p: (one for one in PIXELS),
    "a tensor": lambda p: torch.from_numpy(PIXELS),
    "tensors": lambda p: list(torch.from_numpy(PIXELS)),
    "Pillow's": opened,
    "a generator of Pillow's": lambda p: iter(opened(p)),
    "encoded": content,
    "a frame of encoded": lambda p: pl.DataFrame({"image": content(p)}),
    "a frame of arrays": lambda p: pd.DataFrame({"image": list(PIXELS)}),
}


@pytest.mark.parametrize("source", UNLABELLED)
def test_pictures_without_labels(paths, source):
    np.testing.assert_array_equal(read_images(UNLABELLED[source](paths)).pixels[..., 0], PIXELS)


PAIRS = {
    "(array, y)": lambda p: (PIXELS, CLASSES),
    "(arrays, y)": lambda p: (list(PIXELS), list(CLASSES)),
    "(tensor, y)": lambda p: (torch.from_numpy(PIXELS), CLASSES),
    "(Pillow's, y)": lambda p: (opened(p), CLASSES),
    "(paths, y)": lambda p: (p, CLASSES),
    "(series, series)": lambda p: (pd.Series(p), pd.Series(CLASSES)),
    "pandas": lambda p: pd.DataFrame({"file": p, "label": CLASSES}),
    "polars": lambda p: pl.DataFrame({"file": p, "label": CLASSES}),
    "Arrow": lambda p: pa.table({"file": p, "label": CLASSES}),
    "encoded": lambda p: pl.DataFrame({"image": content(p), "label": CLASSES}),
}


@pytest.mark.parametrize("source", PAIRS)
def test_pictures_with_labels_are_those_of_the_table_in_a_file(paths, tmp_path, source):
    pl.DataFrame({"file": paths, "label": CLASSES}).write_csv(tmp_path / "t.csv")
    expected = read_images(tmp_path / "t.csv", problem="auto")
    found = read_images(PAIRS[source](paths), problem="auto")
    np.testing.assert_array_equal(found.pixels, expected.pixels)
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert found.classes == expected.classes


CELLS = {
    "several in one cell": ["a|b", "a", "b|c"] * 4,
    "a lone bar": ["|", "a", "b"] * 4,
    "semicolons": ["a;b", "a", "b"] * 4,
    "one number written in two ways": ["01", "1"] * 6,
    "a decimal comma": ["0,5", "1,5"] * 6,
    "a label for each picture": [f"name {n}" for n in range(12)],
    "an empty label": ["a", "", "b"] * 4,
    "numbers with fractions": ["0.5", "1.25"] * 6,
    "truth values": [True, False] * 6,
    "whole numbers in floats": [1.0, 2.0] * 6,
}


def read_labels(data):
    """What labels are read as: their names and values, or that they are refused."""
    try:
        found = read_images(data, problem="auto")
    except UserError:
        return "refused"
    warned = [note for note in found.notes if note.startswith("warning")]
    if found.targets is not None:
        names = found.targets.names if found.targets.problem == "multi" else []
        return found.targets.problem, names, found.targets.values.tolist(), warned
    return found.classes, found.labels.tolist(), warned


@pytest.mark.parametrize("cells", CELLS)
def test_labels_of_an_array_are_those_of_the_column_in_a_table(paths, cells):
    table = pd.DataFrame({"file": paths, "label": CELLS[cells]})
    expected = read_labels(table)
    np.savez(paths[0] + ".npz", pixels=PIXELS, y=np.array(CELLS[cells]))
    for source in (pl.from_pandas(table), (PIXELS, CELLS[cells]), (paths, CELLS[cells]), paths[0] + ".npz"):
        assert read_labels(source) == expected


def test_a_palette_in_memory_has_its_colours(tmp_path):
    image = Image.fromarray(PIXELS[0]).convert("RGB").quantize(8)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    (tmp_path / "p.png").write_bytes(buffer.getvalue())
    for source in (image, [image], ([image], ["a"])):
        np.testing.assert_array_equal(read_images(source).pixels, read_images(tmp_path / "p.png").pixels)


@pytest.mark.parametrize("source", [None, 3, PIXELS.tolist(), [PIXELS[0], "a.png"], object()])
def test_what_is_no_pictures_is_refused(source):
    with pytest.raises(UserError, match="pictures of type"):
        read_images(source)


def test_a_frame_is_refused_as_its_file_is(paths, tmp_path):
    table = pl.DataFrame({"file": [*paths[:3], "gone.png"], "label": ["a", "b", None, "a"]})
    table.write_csv(tmp_path / "t.csv")
    said = []
    for source in (table, tmp_path / "t.csv"):
        with pytest.raises(UserError) as error:
            read_images(source, problem="auto")
        said.append(str(error.value).partition(": ")[2].replace("line 5", "row 3").replace("line 4", "row 2"))
    assert said[0] == said[1]


def test_tensors_are_what_their_numbers_are_in_any_precision_and_with_gradients():
    floats = (PIXELS / 256).astype(np.float32)  # exact in 8 bits
    expected = read_images((floats, NUMBERS.astype(np.float32)), problem="regression")
    pixels, labels = torch.from_numpy(floats).bfloat16(), torch.from_numpy(NUMBERS).bfloat16().requires_grad_()
    for source in ((pixels, labels), (list(pixels), labels)):
        found = read_images(source, problem="regression")
        np.testing.assert_array_equal(found.pixels, expected.pixels)
        np.testing.assert_array_equal(found.targets.values, expected.targets.values)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_three_planes_for_a_model_of_colours_may_be_one_picture(kind):
    """torchvision's order is (3, height, width): it was read as three grey pictures."""
    with pytest.raises(UserError, match=r"\(3, 12, 12\): one picture in colour, or 3 grey ones"):
        read_images(kind(PIXELS[:3]), channels=3)
    one = read_images(kind(PIXELS[:3])[None], channels=3)
    np.testing.assert_array_equal(one.pixels[0], PIXELS[:3].transpose(1, 2, 0))
    assert len(read_images(kind(PIXELS[:3]), channels=1)) == len(read_images(kind(PIXELS[:3])[..., None])) == 3


def test_grey_made_coloured_and_back_is_said_alike_of_files_and_arrays(paths):
    colour = np.stack([PIXELS[0], PIXELS[1], PIXELS[2]], -1)
    Image.fromarray(colour).save(paths[0])
    for grey in (paths[1:], PIXELS[1:], list(PIXELS[1:])):
        found = read_images(grey, channels=3)
        assert "11 pictures: grey repeated into 3 channels" in found.notes
        np.testing.assert_array_equal(found.pixels, np.repeat(PIXELS[1:, ..., None], 3, -1))
    for mixed in (paths, [colour, *PIXELS[1:]]):
        assert "11 pictures: grey repeated into 3 channels" in read_images(mixed).notes
    both = [read_images(one, channels=1) for one in (paths[:1], colour[None])]
    assert all("1 pictures: colours weighed to grey" in found.notes for found in both)
    np.testing.assert_array_equal(both[0].pixels, both[1].pixels)


def test_colours_weighed_to_grey_are_as_pillow_rounds_them():
    every = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    grey = np.asarray(Image.fromarray(every).convert("L"))
    np.testing.assert_array_equal(read_images(every[None], channels=1).pixels[0, ..., 0], grey)


def test_grey_is_not_repeated_into_five_channels():
    with pytest.raises(UserError, match="1 channels, 5 expected"):
        read_images(PIXELS, channels=5)


TABLES = {
    "paths": lambda p, rest: pd.DataFrame({"image": p, **rest}),
    "encoded": lambda p, rest: pd.DataFrame({"image": content(p), **rest}),
    "Hugging Face's": lambda p, rest: pd.DataFrame({"image": [{"bytes": c, "path": None} for c in content(p)], **rest}),
    "Pillow's": lambda p, rest: pd.DataFrame({"image": opened(p), **rest}),
    "arrays": lambda p, rest: pd.DataFrame({"image": list(PIXELS), **rest}),
    "dicts": lambda p, rest: pd.DataFrame({"image": opened(p), **rest}).to_dict("records"),
}


@pytest.mark.parametrize("source", [*TABLES, "parquet"])
def test_columns_beside_pictures_count_wherever_the_pictures_are(paths, tmp_path, source):
    """A column of parts was read beside paths alone; a group that is missing was one named None or nan."""

    def read(rest, **options):
        data = TABLES["encoded" if source == "parquet" else source](paths, rest)
        if source == "parquet":
            data.to_parquet(path := tmp_path / "t.parquet")
            data = path
        return read_images(data, problem="single", **options)

    rest = {"label": list(CLASSES), "split": ["train", "TRAIN", "test"] * 4, "plate": [1.0, 1.0, 2.0, 2.5] * 3}
    found = read(rest, group="plate")
    assert found.split.tolist() == ["train", "train", "test"] * 4
    assert "held apart from it: test (4)" in "; ".join(found.notes)
    assert found.groups.tolist() == ["1", "1", "2", "2.5"] * 3
    assert read(rest | {"split": ["left"] * 12}).split is None
    for nothing in (None, float("nan"), " "):
        with pytest.raises(UserError, match=r"row 1.*plate: no group"):
            read(rest | {"plate": ["a", nothing, *"abcdefghij"]}, group="plate")


class OfTorchvision:
    """A data set as torchvision has them: (picture, number), and the names of the classes."""

    classes = ("across", "down", "square")

    def __init__(self, pixels, labels):
        self.pixels, self.labels = pixels, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        if number >= len(self):
            raise IndexError(number)
        return Image.fromarray(self.pixels[number]), int(self.labels[number])


def test_data_sets_of_torch_are_pictures_and_labels():
    pixels, labels = bars(12)
    tensors = TensorDataset(torch.from_numpy(pixels), torch.from_numpy(labels))
    named = OfTorchvision(pixels, labels)
    for data, names in (
        (tensors, ["0", "1", "2"]),
        (DataLoader(tensors, batch_size=4, shuffle=True), ["0", "1", "2"]),
        (named, ["across", "down", "square"]),
        (DataLoader(named, batch_size=4), ["across", "down", "square"]),
        ([(picture, label) for picture, label in zip(pixels, labels, strict=True)], ["0", "1", "2"]),
        ([{"image": Image.fromarray(p), "label": n} for p, n in zip(pixels, labels, strict=True)], ["0", "1", "2"]),
    ):
        found = read_images(data)
        np.testing.assert_array_equal(found.pixels[..., 0], pixels)
        assert found.labels.tolist() == labels.tolist()
        assert found.classes == names
