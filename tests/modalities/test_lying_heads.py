"""A file whose head claims more than there is costs nothing: it is refused before anything is made for the claim."""

from __future__ import annotations

import ctypes
import gzip
import io
import multiprocessing
import resource
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unmask import memory
from unmask.errors import UserError
from unmask.modalities.images.formats.picture import Broken, Choice

ROOM = 200e6
"""Bytes beyond what the process held before that a refusal may take; also what is said to be free."""
HUGE = 60_000
M_MMAP_MAX = -4
"""From glibc's malloc.h."""


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *, bits: int = 8, colour: int = 2, frames: int = 0) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    moving = chunk(b"acTL", struct.pack(">II", frames, 0)) if frames else b""
    moving += chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 1, 0, 0)) if frames else b""
    return b"\x89PNG\r\n\x1a\n" + head + moving + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")


def tiff(tags: dict[int, tuple[int, int]], *, text: str = "") -> bytes:
    """A little-endian TIFF of one directory: tag -> (type, value); `text` is its description."""
    own = {256: (4, 8), 257: (4, 8), 258: (3, 8), 259: (3, 1), 262: (3, 1), 273: (4, 4096), 277: (3, 1)}
    own |= {278: (4, 8), 279: (4, 64)} | tags
    letters = text.encode() + b"\0"
    body = b"II*\0" + struct.pack("<IH", 8, len(own) + bool(text))
    after = 8 + 2 + 12 * (len(own) + bool(text)) + 4
    entries = [(tag, kind, 1, value) for tag, (kind, value) in own.items()]
    entries += [(270, 2, len(letters), after)] if text else []
    body += b"".join(struct.pack("<HHII", *e) for e in sorted(entries)) + bytes(4)
    return (body + letters).ljust(4096, b"\0") + bytes(64)


def gif(width: int, height: int) -> bytes:
    frame = b"," + struct.pack("<HHHH", 0, 0, width, height) + b"\0" + b"\x02\x02\x4c\x01\0"
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + bytes(6) + frame + b";"


def nifti(shape: tuple[int, ...]) -> bytes:
    head = bytearray(352)
    struct.pack_into("<i", head, 0, 348)
    struct.pack_into("<8h", head, 40, len(shape), *shape, *[1] * (7 - len(shape)))
    struct.pack_into("<hh", head, 70, 4, 16)
    struct.pack_into("<8f", head, 76, *[1.0] * 8)
    struct.pack_into("<fff", head, 108, 352.0, 2.0, 0.0)
    head[344:348] = b"n+1\0"
    return bytes(head) + bytes(64)


def npy(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    told = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    told = told.ljust(117) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(told)) + told.encode() + bytes(64)


def jpeg2000(width: int, height: int, bits: int) -> bytes:
    size = struct.pack(">HIIIIIIIIH", 0, width, height, 0, 0, width, height, 0, 0, 1) + bytes([bits - 1, 1, 1])
    return b"\xff\x4f\xff\x51" + struct.pack(">H", len(size) + 2) + size + bytes(64)


def webp(width: int, height: int) -> bytes:
    bits = 0x2F | (width - 1) << 8 | (height - 1) << 22
    body = b"VP8L" + struct.pack("<I", 16) + struct.pack("<Q", bits)[:5] + bytes(11)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def jpeg(width: int, height: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    content = bytearray(file.getvalue())
    at = content.index(b"\xff\xc0")
    content[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(content)


OME = (
    '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0"><Pixels '
    'DimensionOrder="XYZCT" ID="Pixels:0" SizeC="1" SizeT="1" SizeX="8" SizeY="8" SizeZ="{}" Type="uint8"><TiffData '
    "/></Pixels></Image></OME>"
)
PICTURES: dict[str, tuple[str, bytes]] = {
    "png": ("a.png", png(HUGE, HUGE)),
    "png below Pillow's limit": ("a.png", png(12_000, 12_000, colour=6)),
    "png of 16 bits": ("a.png", png(HUGE, HUGE, bits=16)),
    "png of many frames": ("a.png", png(8, 8, frames=2**31 - 1)),
    "jpeg": ("a.jpg", jpeg(HUGE, HUGE)),
    "jpeg below Pillow's limit": ("a.jpg", jpeg(13_000, 13_000)),
    "gif": ("a.gif", gif(HUGE, HUGE)),
    "webp": ("a.webp", webp(13_000, 13_000)),
    "bmp": ("a.bmp", b"BM" + struct.pack("<IIIIiiHHIIIIII", 118, 0, 54, 40, HUGE, HUGE, 1, 24, 0, 64, 0, 0, 0, 0)),
    "pgm": ("a.pgm", b"P5 60000 60000 255\n" + bytes(64)),
    "jpeg 2000 of 12 bits": ("a.jp2", jpeg2000(HUGE, HUGE, 12)),
    "jpeg 2000 of 8 bits": ("a.jp2", jpeg2000(HUGE, HUGE, 8)),
    "tiff": ("a.tif", tiff({256: (4, HUGE), 257: (4, HUGE)})),
    "tiff of 16 bits": ("a.tif", tiff({256: (4, HUGE), 257: (4, HUGE), 258: (3, 16)})),
    "tiff of many bands": ("a.tif", tiff({277: (3, 65535), 256: (4, HUGE), 257: (4, 100)})),
    "tiff of many strips": ("a.tif", tiff({278: (4, 1), 256: (4, 8), 257: (4, 2**31)})),
    "tiff in zip": ("a.tif", tiff({256: (4, HUGE), 257: (4, HUGE), 258: (3, 16), 259: (3, 8)})),
    "tiff of ome planes": ("a.ome.tif", tiff({258: (3, 16)}, text=OME.format(10**9))),
    "nifti": ("a.nii", nifti((30_000, 30_000, 30_000))),
    "nifti of many volumes": ("a.nii", nifti((8, 8, 30_000, 30_000))),
    "nifti in gzip": ("a.nii.gz", gzip.compress(nifti((30_000, 30_000, 30_000)))),
    "npy": ("a.npy", npy((HUGE, HUGE))),
}


def at_no_cost(path: Path, read: Callable[[], Any]) -> None:
    """Reading is refused, with 200 MB said to be free, and takes no more than that."""

    def child(end: Any) -> None:
        # As in a new process: where an earlier test had freed memory kept, glibc clears what it hands out again.
        if hasattr(ctypes.CDLL(None), "mallopt"):
            ctypes.CDLL(None).mallopt(M_MMAP_MAX, 65536)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        memory.free_memory = lambda *_, **__: memory.Free(ROOM, "made up")  # type: ignore[assignment]
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        resource.setrlimit(resource.RLIMIT_DATA, (16 << 30, 16 << 30))
        try:
            found = read()
            said = found.reason if isinstance(found, Broken) else None
        except UserError as error:
            said = str(error)
        end.send((said, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024))

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(there,))
    process.start()
    there.close()
    try:
        said, taken = here.recv()
    except EOFError:
        pytest.fail(f"{path.name}: ended by the system")
    finally:
        process.join()
    assert said is not None, f"{path.name}: read"
    assert taken < ROOM, f"{taken / 1e6:.0f} MB for a refusal: {said}"


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("held", ["file", "bytes"])
def test_pictures(name: str, held: str, tmp_path: Path):
    from unmask.modalities.images.reading.decode import pictures, survey

    file, content = PICTURES[name]
    if held == "bytes" and file.endswith((".nii", ".nii.gz")):
        pytest.skip("not read from bytes")
    path = tmp_path / file
    path.write_bytes(content)
    source = str(path) if held == "file" else content
    at_no_cost(path, lambda: survey(source, Choice(planes="all")))
    at_no_cost(path, lambda: pictures(source, Choice(planes="all")))
