"""Every number format that a command can be asked for is computed or written in, or refused with exit code 2 saying
what is possible."""

import json

import pytest
from safetensors.torch import load_file

import tiny_folders
from commands import run

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
TARGETS = ("hf", "sentence-transformers", "onnx")
NOTHING = {"hf": ("--quantize", "--pooling", "--texts"), "sentence-transformers": ("--quantize", "--texts"), "onnx": ()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("formats")
    (path / "texts.txt").write_text("The quick brown fox jumps.\nReaders check.\n")
    return tiny_folders.folder(path / "m")


@pytest.mark.parametrize("dtype", [None, "fp32", "bf16", "fp16", "int8", "fp8"])
@pytest.mark.parametrize("to", TARGETS)
def test_exports_are_in_the_format_asked_for(model, tmp_path, capsys, to, dtype):
    asked = [] if dtype is None else ["--dtype", dtype]
    code, _text, err = run(capsys, "export", model, "--to", to, "--out", tmp_path / "o", *asked, "--json")
    if dtype in ("int8", "fp8") or (to == "onnx" and dtype in ("bf16", "fp16")):
        assert code == 2
        assert f"--dtype {dtype}" in err
        assert "fp32" in err
        assert not (tmp_path / "o").exists()
        return
    assert code == 0, err
    assert (
        json.loads((tmp_path / "o" / "config.json").read_text())["dtype"]
        == {None: "float32", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[dtype]
    )
    if to != "onnx":
        kinds = {str(t.dtype) for t in load_file(tmp_path / "o" / "model.safetensors").values()}
        assert kinds == {
            f"torch.{ {None: 'float32', 'fp32': 'float32', 'bf16': 'bfloat16', 'fp16': 'float16'}[dtype] }"
        }


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize(
    ("flag", "good", "bad"),
    [("--quantize", "int8", "int4"), ("--pooling", "mean", "last"), ("--texts", __file__, __file__)],
)
def test_a_flag_of_another_target_is_refused(model, tmp_path, capsys, to, flag, good, bad):
    for value in (good, bad) if flag in NOTHING[to] else (bad,):
        code, _, err = run(capsys, "export", model, "--to", to, "--out", tmp_path / "o", flag, value)
        assert code == 2
        assert err.startswith(f"unmask: {flag}")
        assert not (tmp_path / "o").exists()


USES = {
    "fill": ["fill", "MODEL", "The [MASK] fox."],
    "score": ["score", "MODEL", "The fox."],
    "embed": ["embed", "MODEL", "The fox.", "--out", "OUT"],
    "evaluate": ["evaluate", "MODEL", "TEXTS"],
    "zeroshot": ["zeroshot", "MODEL", "The fox.", "--label", "quick", "--label", "lazy"],
}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "fp16"])
@pytest.mark.parametrize("use", USES)
def test_uses_compute_in_the_precision_asked_for(model, tmp_path, capsys, use, precision):
    known = {"MODEL": model, "OUT": tmp_path / "f.npy", "TEXTS": model.parent / "texts.txt"}
    arguments = [known.get(part, part) for part in USES[use]]
    code, text, err = run(capsys, *arguments, "--precision", precision, "--json")
    if precision == "fp16" or (precision == "int8" and use != "embed"):
        assert code == 2
        assert f"precision={precision}" in err
        assert not (tmp_path / "f.npy").exists()
    else:
        assert code == 0, err
        assert json.loads(text)["precision"] == precision


@pytest.mark.parametrize("command", ["score M t", "embed M t --out f", "fill M t --out f", "evaluate M t"])
@pytest.mark.parametrize("flag", ["--precision bf16", "--precision fp32", "--device cuda"])
def test_tables_have_no_choice_of_format(tmp_path, capsys, command, flag):
    (tmp_path / "unmask.json").write_text('{"kind": "table"}')
    code, _, err = run(capsys, *command.replace("M", str(tmp_path), 1).split(), *flag.split())
    assert code == 2
    assert "not read for table" in err
