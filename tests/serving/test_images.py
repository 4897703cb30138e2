"""Pictures as they are served: what the model says of them, and uploads that are decoded within limits."""

from __future__ import annotations

import base64
import dataclasses
import io
import struct
import zlib

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from PIL import Image, PngImagePlugin

import unmask
from running_server import running
from tiny_images import bars
from unmask.errors import UserError
from unmask.serving.images import _embed, _reconstruct
from unmask.serving.limits import Limits
from unmask.serving.models import load_served
from unmask.serving.shapes import checked


def png(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.fixture(scope="module")
def server(image_folders):
    names = {name: str(folder) for name, folder in image_folders.items()}
    with running(load_served(names, Limits(pixels=100_000), device="cpu", precision="fp32")) as asked:
        yield asked


PICTURES, _ = bars(3)


def test_what_is_painted_is_hidden_and_predicted_back(server, image_folders):
    mask = np.zeros((4, 4), int)
    mask[1:3, 1] = 1
    body = {"images": [png(PICTURES[0])], "mask": mask.tolist(), "pixels": True}
    status, found = server.post("/models/m/reconstruct", body)
    assert status == 200, found
    (row,) = found["results"]
    own = unmask.load(image_folders["m"], precision="fp32").reconstruct(PICTURES[:1], mask=mask)
    given = row["pixels"]
    filled = np.frombuffer(base64.b64decode(given["data"]), given["dtype"]).reshape(given["shape"])
    np.testing.assert_array_equal(filled, own.filled[0])
    assert row["share_hidden"] == pytest.approx(2 / 16)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(row["original"]))))
    np.testing.assert_array_equal(shown, PICTURES[0])
    hidden = np.asarray(Image.open(io.BytesIO(base64.b64decode(row["hidden"]))))
    assert (hidden[3:9, 3:6] == 127).all()
    assert (np.delete(hidden, range(3, 6), 1) == np.delete(PICTURES[0], range(3, 6), 1)).all()


def test_vectors_and_classes_are_those_of_the_model(server, image_folders):
    images = [png(p) for p in PICTURES]
    found = server.post("/models/m/embed", {"images": images})[1]["embeddings"]
    np.testing.assert_allclose(found, unmask.load(image_folders["m"], precision="fp32").embed(PICTURES), atol=1e-5)
    rows = server.post("/models/tuned/classify", {"images": images})[1]["results"]
    own = unmask.load(image_folders["tuned"], precision="fp32").predict(PICTURES)
    assert [r["label"] for r in rows] == [r["label"] for r in own]
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_masks_are_those_of_the_model(segmenter_folder):
    own = unmask.load(segmenter_folder, device="cpu", precision="fp32")
    pictures = [
        np.random.default_rng(n).integers(0, 255, size).astype(np.uint8) for n, size in enumerate([(24, 30), (31, 17)])
    ]
    rows = [own.predict(p[None])[0] for p in pictures]
    names = {"m": str(segmenter_folder)}
    with running(load_served(names, Limits(pixels=5000), device="cpu", precision="fp32")) as server:
        assert server.get("/models/m")[1]["about"]["labels"] == own.names
        status, found = server.post("/models/m/segment", {"images": [png(p) for p in pictures], "draw": True})
        assert status == 200, found
        assert [c["name"] for c in found["classes"]] == own.names
        for row, expected, picture in zip(found["results"], rows, pictures, strict=True):
            mask, drawn = (np.asarray(Image.open(io.BytesIO(base64.b64decode(row[k])))) for k in ("mask", "drawn"))
            np.testing.assert_array_equal(mask, expected["mask"])
            assert row["shares"] == expected["shares"]
            assert (row["height"], row["width"]) == drawn.shape[:2] == picture.shape
            for one in found["classes"]:
                colour = [int(one["colour"][i : i + 2], 16) for i in (1, 3, 5)]
                assert (drawn[mask == int(one["value"])] == colour).all()
        assert "drawn" not in server.post("/models/m/segment", {"images": [png(pictures[0])]})[1]["results"][0]
        status, found = server.post("/models/m/segment", {"images": [png(np.zeros((90, 90), np.uint8))]})
        assert status == 400
        assert "at most 5,000" in found["error"]["what"]
        status, found = server.post("/models/m/embed", {"images": [png(pictures[0])]})
        assert status == 200, found


def test_a_quantity_is_that_of_the_model(segmenter_folder, tmp_path):
    pictures = np.random.default_rng(0).integers(0, 255, (3, 24, 30)).astype(np.uint8)
    base = unmask.load(segmenter_folder, device="cpu", precision="fp32").model
    how = {"masks": list(pictures / 7.3), "steps": 2, "problem": "regression", "precision": "fp32", "console": False}
    unmask.images.finetune_segment(base, pictures, tmp_path / "q", **how)
    (own,) = unmask.load(tmp_path / "q", device="cpu", precision="fp32").predict(pictures[:1])
    with running(load_served({"m": str(tmp_path / "q")}, Limits(), device="cpu", precision="fp32")) as server:
        status, found = server.post("/models/m/segment", {"images": [png(pictures[0])], "draw": True})
    assert status == 200, found
    (row,) = found["results"]
    values, drawn = (np.asarray(Image.open(io.BytesIO(base64.b64decode(row[k])))) for k in ("mask", "drawn"))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, own["mask"])
    assert (row["mean"], row["sum"]) == (own["mean"], own["sum"])
    assert row["drawn_range"][0] < row["drawn_range"][1]
    assert drawn.shape == (24, 30, 3)
    assert found["classes"] == []


def test_image_classification_of_the_hub(server):
    for address in ("/models/tuned", "/models/tuned/pipeline/image-classification"):
        client = InferenceClient(base_url=server.url + address)
        content = base64.b64decode(png(PICTURES[0]))
        found = client.image_classification(content)
        assert {one.label for one in found} == {"across", "down", "square"}
        assert [one.label for one in client.image_classification(content, top_k=1)] == [found[0].label]


def bomb(side: int) -> bytes:
    """A PNG of a few kilobytes that says it is side x side."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * (side + 1) * min(side, 2000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bomb(30_000), "900,000,000 pixels"),
        (bomb(9_000), "81,000,000 pixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n(/etc/passwd)", "not a picture in a known format"),
        (b"/etc/passwd", "not a picture in a known format"),
        (b"", "not a picture in a known format"),
        (base64.b64decode(png(PICTURES[0]))[:60], "images[0]"),
        (b"GIF89a" + b"\xff" * 30, "images[0]"),
    ],
)
def test_what_is_no_picture_is_refused_before_it_is_decoded(server, content, said):
    status, found = server.post("/models/m/embed", {"images": [base64.b64encode(content).decode()]})
    assert status == 400
    assert said in found["error"]["what"]


@pytest.mark.parametrize("pixels", [PICTURES[0].astype(np.uint16), np.zeros((4, 12, 12), np.uint8)])
def test_what_is_unlike_the_training_is_refused_with_what_a_request_can_send(server, pixels):
    buffer = io.BytesIO()
    np.save(buffer, pixels)
    status, found = server.post("/models/m/embed", {"images": [base64.b64encode(buffer.getvalue()).decode()]})
    assert status == 400
    assert found["error"]["hint"] == "Send pictures like those it was trained on: channels=1 of uint8."


def file_of(**frames: np.ndarray) -> str:
    """A stack as an OME-TIFF or an animation as a GIF, in base64."""
    buffer = io.BytesIO()
    ((kind, pixels),) = frames.items()
    if kind == "ome":
        pytest.importorskip("tifffile").imwrite(buffer, pixels, metadata={"axes": "ZYX"}, ome=True)
    elif kind == "npy":
        np.save(buffer, pixels)
    else:
        first, *others = map(Image.fromarray, pixels)
        first.save(buffer, "GIF", save_all=True, append_images=others)
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize("kind", ["ome", "npy"])
def test_planes_in_one_file_are_refused_by_the_place_of_the_picture(server, kind):
    """Every plane had a row, so that later rows were another picture's; three in an array became one grey picture."""
    images = [png(PICTURES[0]), file_of(**{kind: PICTURES[:3]})]
    for address in ("m/embed", "m/reconstruct", "tuned/classify"):
        status, found = server.post(f"/models/{address}", {"images": images})
        assert (status, found["error"]["what"]) == (400, "images[1]: 3 planes, and an answer is of one picture")
    status, found = server.post("/models/tuned/pipeline/image-classification", {"inputs": images[1]})
    assert (status, found["error"]["what"]) == (400, "images[0]: 3 planes, and an answer is of one picture")


def test_tiles_are_not_answers_to_the_pictures_of_a_request(image_folders):
    model = unmask.load(image_folders["m"], precision="fp32")
    model.folder = dataclasses.replace(model.folder, reading={"view": "tile"})
    large = [png(np.tile(PICTURES[0], (2, 2))), png(PICTURES[0])]
    verbs = {"embed": _embed(model, model, Limits()), "reconstruct": _reconstruct(model, Limits())}
    works = {name: checked(verb.request, {"images": large}) for name, verb in verbs.items()}
    with pytest.raises(UserError, match="5 tiles of 2 pictures"):
        verbs["reconstruct"].prepare(works["reconstruct"])
    work = verbs["embed"].prepare(works["embed"])
    assert len(work.finish(work.run(work.items))["embeddings"]) == 2


def test_what_was_made_of_pictures_is_in_the_answer(server):
    wide = np.tile(PICTURES[0], (1, 4))
    coloured = np.stack([PICTURES[0]] * 3, -1)
    said = {
        png(PICTURES[0]): "",
        png(wide): "75% of each cut off",
        file_of(gif=PICTURES): "the first of 3 frames",
        png(coloured): "colours weighed to grey",
    }
    for image, part in said.items():
        for address in ("m/embed", "m/reconstruct", "tuned/classify"):
            warnings = server.post(f"/models/{address}", {"images": [image]})[1]["warnings"]
            assert part in " ".join(warnings)
            assert bool(warnings) == bool(part)
        _, headers, _ = server.send("POST", "/models/tuned/pipeline/image-classification", {"inputs": image})
        assert part in headers.get("x-unmask-warning", "")


def test_a_png_that_is_too_large_is_not_decoded_for_what_stands_behind_its_pixels(server, monkeypatch):
    loaded = []
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda image: loaded.append(image.size))
    status, found = server.post("/models/m/embed", {"images": [base64.b64encode(bomb(9_000)).decode()]})
    assert (status, loaded) == (400, [])
    assert "81,000,000 pixels" in found["error"]["what"]


def test_paths_are_never_opened(server, tmp_path):
    Image.fromarray(PICTURES[0]).save(tmp_path / "a.png")
    for text in (str(tmp_path / "a.png"), f"file://{tmp_path}/a.png", "hf:mnist"):
        status, found = server.post("/models/m/embed", {"images": [text]})
        assert status == 400
        assert "base64" in found["error"]["what"] or "picture" in found["error"]["what"]


def test_a_box_changes_nothing_outside_it(server):
    body = {"images": [png(PICTURES[0])], "box": [4, 4, 3, 2], "pixels": True}
    (row,) = server.post("/models/m/reconstruct", body)[1]["results"]
    filled = np.frombuffer(base64.b64decode(row["pixels"]["data"]), row["pixels"]["dtype"]).reshape(12, 12)
    changed = np.argwhere(filled != PICTURES[0])
    assert len(changed)
    assert (changed >= (4, 4)).all()
    assert (changed < (6, 7)).all()
    assert row["share_hidden"] == pytest.approx(6 / 144)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"mask": [[1, 0], [0]]}, "several lengths"),
        ({"mask": [[1, 0], [0, 1]]}, "mask"),
        ({"mask": [[1] * 4] * 4, "ratio": 0.5}, "more than one"),
        ({"box": [1, 2]}, "box: 2 values"),
    ],
)
def test_masks_that_do_not_fit_are_refused(server, more, said):
    status, found = server.post("/models/m/reconstruct", {"images": [png(PICTURES[0])], **more})
    assert status == 400
    assert said in found["error"]["what"]
