"""Arrays whose heads claim more than their files hold, or more than there is, are refused before they are made."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile

import numpy as np
import pytest

from unmask import memory
from unmask.errors import UserError
from unmask.memory import Free, peak_memory
from unmask.modalities.images.reading.sources import read_images


def npy(*shape: int) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(100)


def npz(*shape: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", npy(*shape))
    return file.getvalue()


IDX = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 2**15, 2**15) + bytes(100)
LYING = {
    "a.npy": npy(1_000_000, 512, 512),
    "a.npz": npz(1_000_000, 512, 512),
    "a-images-idx3-ubyte": IDX,
    "a-images-idx3-ubyte.gz": gzip.compress(IDX),
    "b-images-idx3-ubyte.gz": lambda: gzip.compress(
        struct.pack(">BBBB3I", 0, 0, 8, 3, 10, 28, 28) + bytes(300_000_000), 1
    ),
}


@pytest.mark.parametrize("name", LYING)
def test_more_than_the_file_holds(name: str, tmp_path):
    content = LYING[name]
    (tmp_path / name).write_bytes(content() if callable(content) else content)
    before = peak_memory()
    with pytest.raises(UserError, match=name.partition(".")[0]):
        read_images(tmp_path / name, size=32)
    assert peak_memory() - before < 200


def test_more_than_the_memory_that_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: Free(1e6, "made up"))
    np.save(tmp_path / "a.npy", np.zeros((3, 700, 700), np.uint8))
    np.savez_compressed(tmp_path / "a.npz", x_train=np.zeros((3, 700, 700), np.uint8))
    (tmp_path / "a-images-idx3-ubyte").write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, 3, 700, 700) + bytes(1_470_000))
    for name in ("a.npy", "a.npz", "a-images-idx3-ubyte"):
        with pytest.raises(UserError, match=rf"{name}: .*made up"):
            read_images(tmp_path / name, size=32)
