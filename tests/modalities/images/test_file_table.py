"""Every kind of file that microscopists, radiologists and satellite people have: filled and embedded as what it is, or
refused with what to say. Some of the kinds are taken through the command line, training included; `python
tests/modalities/images/test_file_table.py FOLDER` does it with all, and keeps the runs to look at."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
import unmask
from picture_files import dicom_slice, geotiff, imagej, nifti_volume, ome, ramp
from tiny_images import TINY
from unmask.cli import main
from unmask.modalities.images.network.batches import channel_statistics
from unmask.modalities.images.network.build import codec_config, new_model
from unmask.modalities.images.network.folder import save_folder
from unmask.modalities.images.reading.account import describe
from unmask.modalities.images.reading.sources import read_images
from unmask.modalities.images.reading.split import held_out_pictures, split_groups
from unmask.modalities.images.recipes import ImageSettings, with_overrides

SIDE, FILES = 32, 6


def bands(count: int, seed: int, **options: Any) -> np.ndarray:
    return ramp(count, SIDE, SIDE, seed=seed, **options).transpose(1, 2, 0)


def ome_channels(path, k):
    ome(path / f"{k}.ome.tif", ramp(5, SIDE, SIDE, low=200, high=4000, dtype="uint16", seed=k), "CYX")


def imagej_channels(path, k):
    imagej(path / f"{k}.tif", ramp(5, SIDE, SIDE, low=200, high=4000, dtype="uint16", seed=k), "CYX")


def stack(path, k):
    imagej(path / f"{k}.tif", ramp(4, SIDE, SIDE, low=100, high=50000, dtype="uint16", seed=k), "ZYX")


def deep_colour(path, k):
    import tifffile

    tifffile.imwrite(path / f"{k}.tif", bands(3, k, low=200, high=4000, dtype="uint16"), photometric="rgb")


def twelve_bits(path, k):
    import tifffile

    tifffile.imwrite(path / f"{k}.tif", ramp(SIDE, SIDE, low=10, high=4095, dtype="uint16", seed=k))


def nan_border(path, k):
    import tifffile

    pixels = bands(2, k, low=-0.1, high=0.9, dtype="float32")
    pixels[:9], pixels[:, 20:25] = np.nan, np.nan
    tifffile.imwrite(path / f"{k}.tif", pixels, photometric="minisblack", planarconfig="contig")


def nodata(path, k):
    pixels = bands(4, k, low=1, high=3000, dtype="int16")
    pixels[-8:] = -9999
    geotiff(path / f"{k}.tif", pixels, nodata="-9999")


def four_bands(path, k):
    geotiff(path / f"{k}.tif", bands(4, k, low=1))


def alpha_band(path, k):
    geotiff(path / f"{k}.tif", bands(4, k, low=1), alpha=True)


def many_bands(count, kind):
    def write(path, k):
        geotiff(path / f"{k}.tif", bands(count, k, low=1, high=250 if kind == "uint8" else 9000, dtype=kind))

    return write


def pages(path, k):
    import tifffile

    with tifffile.TiffWriter(path / f"{k}.tif") as file:
        for plane in ramp(3, SIDE, SIDE, seed=k):
            file.write(plane, metadata=None, contiguous=False)


def scans(path, k):
    stored = ramp(SIDE, SIDE, high=4000, dtype="uint16", seed=k // 3)
    dicom_slice(
        path / f"IM{k}",
        stored,
        place=-3.0 * k,
        instance=k,
        intercept=-1024,
        padding=0,
        patient=f"P{k // 3}",
        series=f"1.2.{k // 3}",
    )


def volume(path, k):
    nifti_volume(
        path / f"{k}.nii.gz", ramp(3, SIDE, SIDE, high=900, dtype="int16", seed=k).transpose(1, 2, 0), (-1, -1, 1)
    )


def arrays(path, k):
    np.save(path / f"{k}.npy", bands(2, k, high=60000, dtype="uint16"))


KINDS: dict[str, tuple[Any, list[str], dict[str, Any]]] = {
    "OME-TIFF, 5 channels": (ome_channels, [], {"shape": [SIDE, SIDE, 5], "depth": "uint16", "pictures": FILES}),
    "ImageJ TIFF, 5 channels": (imagej_channels, [], {"shape": [SIDE, SIDE, 5], "depth": "uint16"}),
    "z-stack": (stack, [], {"shape": [SIDE, SIDE, 1], "pictures": 4 * FILES, "groups_on_both_sides": 0}),
    "z-stack, brightest": (stack, ["planes=max"], {"shape": [SIDE, SIDE, 1], "pictures": FILES}),
    "16-bit colour": (deep_colour, [], {"shape": [SIDE, SIDE, 3], "depth": "uint16", "range": [200, 4000]}),
    "12 bits in 16": (twelve_bits, [], {"shape": [SIDE, SIDE, 1], "depth": "uint16", "range": [10, 4095]}),
    "GeoTIFF, 2 bands": (many_bands(2, "uint8"), [], {"shape": [SIDE, SIDE, 2], "depth": "uint8"}),
    "GeoTIFF, 4 bands of 8 bits": (four_bands, [], {"shape": [SIDE, SIDE, 4], "depth": "uint8"}),
    "GeoTIFF, 4 bands of 16 bits": (many_bands(4, "uint16"), [], {"shape": [SIDE, SIDE, 4], "depth": "uint16"}),
    "GeoTIFF, 5 bands": (many_bands(5, "uint8"), [], {"shape": [SIDE, SIDE, 5], "depth": "uint8"}),
    "GeoTIFF, 13 bands": (many_bands(13, "uint16"), [], {"shape": [SIDE, SIDE, 13], "depth": "uint16"}),
    "GeoTIFF, nodata": (nodata, [], {"shape": [SIDE, SIDE, 4], "depth": "float32", "missing_share": 0.25}),
    "alpha band as a channel": (alpha_band, ["alpha=band"], {"shape": [SIDE, SIDE, 4]}),
    "NaN border": (nan_border, [], {"shape": [SIDE, SIDE, 2], "missing_share": 1 - (23 / 32) * (27 / 32)}),
    "pages as channels": (pages, ["planes=channels"], {"shape": [SIDE, SIDE, 3]}),
    "DICOM series": (scans, [], {"shape": [SIDE, SIDE, 1], "depth": "float32", "groups_on_both_sides": 0}),
    "NIfTI": (volume, [], {"shape": [SIDE, SIDE, 1], "pictures": 3 * FILES, "groups_on_both_sides": 0}),
    "folder of .npy": (arrays, [], {"shape": [SIDE, SIDE, 2], "depth": "uint16"}),
}
TRAINED = ("OME-TIFF, 5 channels", "GeoTIFF, nodata", "DICOM series", "NIfTI")
ASKED = {"pages": (pages, "planes=channels"), "alpha band": (alpha_band, "alpha=band")}
SMALL = [
    part
    for s in (
        "width=32",
        "layers=1",
        "heads=2",
        "decoder_width=16",
        "decoder_layers=1",
        "decoder_heads=1",
        "holdout=0.3",
        "patch=4",
        "batch=8",
    )
    for part in ("--set", s)
]


def ran(*arguments: Any) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*map(str, arguments), "--json"])
    return json.loads(out.getvalue())


def run_kind(name: str, root: Path, steps: int = 2) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    write, chosen, _ = KINDS[name]
    data = root / "data"
    data.mkdir(parents=True)
    for k in range(FILES):
        write(data, k)
    sets = [part for c in chosen for part in ("--set", c)]
    trained = ran(
        "pretrain",
        "images",
        data,
        "--out",
        root / "model",
        "--steps",
        steps,
        "--precision",
        "fp32",
        *SMALL,
        "--examples",
        *sets,
    )
    filled = ran("fill", root / "model", data, "--ratio", "0.5", "--out", root / "filled.png")
    embedded = ran("embed", root / "model", data, "--out", root / "vectors.npy")
    return trained, filled, embedded


def use_kind(name: str, root: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What `run_kind` gives, of a model that was not trained."""
    write, chosen, _ = KINDS[name]
    for k in range(FILES):
        write(root, k)
    images = read_images(root, **dict(c.split("=") for c in chosen))
    s = with_overrides(ImageSettings(), TINY | {"patch": 4})
    model = new_model(s, codec_config(s, images.size, images.channels, *channel_statistics(images)))
    folder = root.parent / f"{root.name}-model"
    save_folder(folder, model, depth=images.depth)
    loaded = unmask.load(folder, precision="fp32")
    filled, vectors = loaded.reconstruct(images, ratio=0.5), loaded.embed(images)
    assert np.isfinite(vectors).all()
    known = filled.hidden if filled.unknown is None else filled.hidden & ~filled.unknown
    error = (filled.filled.astype(float) - filled.original)[known]
    data = describe(images) | split_groups(images, held_out_pictures(images, 0.3, 0))
    fill = {"pictures": len(filled.original), "data": describe(images), "rmse": float(np.sqrt(np.mean(error**2)))}
    return {"data": data}, fill, {"shape": vectors.shape}


def check_kind(name: str, trained: dict[str, Any], filled: dict[str, Any], embedded: dict[str, Any]) -> None:
    for key, expected in KINDS[name][2].items():
        wanted = expected if isinstance(expected, str) else pytest.approx(expected, rel=0.02)
        assert trained["data"][key] == wanted, key
    assert filled["pictures"] == embedded["shape"][0] == trained["data"]["pictures"]
    assert filled["data"]["shape"] == trained["data"]["shape"]
    assert np.isfinite(filled["rmse"])
    assert trained["data"]["skipped"] == 0


@pytest.mark.parametrize("name", TRAINED)
def test_files_are_trained_on_filled_and_embedded_as_what_they_are(tmp_path, name):
    pytest.importorskip("tifffile")
    pytest.importorskip("pydicom")
    pytest.importorskip("nibabel")
    trained, filled, embedded = run_kind(name, tmp_path)
    check_kind(name, trained, filled, embedded)
    assert np.isfinite(trained["validation"]["validation_loss"] if "validation" in trained else 0.0)
    assert np.isfinite(np.load(tmp_path / "vectors.npy")).all()
    page = (tmp_path / "model" / "report.html").read_text()
    assert "data:image/png" in page


@pytest.mark.parametrize("name", [name for name in KINDS if name not in TRAINED])
def test_files_are_filled_and_embedded_as_what_they_are(tmp_path, name):
    pytest.importorskip("tifffile")
    check_kind(name, *use_kind(name, tmp_path))


@pytest.mark.parametrize("name", ASKED)
def test_files_that_can_be_read_in_two_ways_are_asked_for(tmp_path, name, capsys):
    pytest.importorskip("tifffile")
    write, answer = ASKED[name]
    write(tmp_path, 0)
    with pytest.raises(SystemExit) as stopped:
        main(["pretrain", "images", str(tmp_path), "--out", str(tmp_path / "m")])
    assert stopped.value.code == 2
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


if __name__ == "__main__":
    for kind in KINDS:
        account, fill, _ = run_kind(kind, Path(sys.argv[1]) / kind.replace(" ", "_").replace(",", ""), steps=150)
        told = account["data"]
        print(
            f"{kind}: {told['pictures']} of {told['shape']} {told['depth']} {told['range']} | {told['notes']} | rmse "
            f"{fill['rmse']:.4g}"
        )


def test_many_bands_are_read_without_remarks_of_other_readers(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(
        tmp_path / "13.tif", np.zeros((8, 8, 13), np.uint16), photometric="minisblack", extrasamples=[0] * 12
    )
    code = (
        "import sys; from unmask.modalities.images.reading.sources import read_images; "
        "print(read_images(sys.argv[1]).channels)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "13.tif")], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("13\n", "")
