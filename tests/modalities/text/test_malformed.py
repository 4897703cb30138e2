"""Every malformed model folder is one message and exit code 2: no traceback, no hang, no memory filled, no noise for an
answer."""

import json
import resource
import shutil

import pytest

import tiny_folders
import unmask
from commands import exit_code, run
from damage import attempt, damage
from unmask.errors import UserError
from unmask.writing import note_weights


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Whole folders of several makes, by name, each with the commands to try."""
    from safetensors.torch import load_file, save_file

    from unmask.export.folders import to_sentence_transformers

    path = tmp_path_factory.mktemp("whole")
    plain = tiny_folders.folder(path / "plain")
    to_sentence_transformers(unmask.load(plain), path / "sentences")
    shutil.copytree(plain, path / "shards")
    weights = load_file(path / "shards" / "model.safetensors")
    (path / "shards" / "model.safetensors").unlink()
    parts = {name: f"part{i % 2}.safetensors" for i, name in enumerate(sorted(weights))}
    for part in set(parts.values()):
        save_file({k: w for k, w in weights.items() if parts[k] == part}, path / "shards" / part)
    (path / "shards" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    rows = tiny_folders.sentiment(8)
    unmask.finetune(plain, rows, task="classify", out=path / "classify", steps=1, precision="fp32", device="cpu")
    (path / "classify" / "report.html").unlink()
    (path / "texts.txt").write_text("The quick brown fox.\nReaders check.\n")
    fill, embed = ["fill", "MODEL", "The [MASK] fox."], ["embed", "MODEL", "The fox.", "--out", "OUT"]
    uses = {
        "plain": [fill, ["score", "MODEL", "The fox."], ["inspect", "MODEL"], ["export", "MODEL", "--out", "OUT"]],
        "sentences": [embed, fill],
        "shards": [fill, embed],
        "classify": [["predict", "MODEL", str(path / "texts.txt"), "--out", "OUT"], embed],
    }
    return {name: (path / name, those) for name, those in uses.items()}


@pytest.mark.parametrize("seed", range(48))
def test_one_damage(folders, tmp_path, seed):
    name = sorted(folders)[seed % len(folders)]
    whole, uses = folders[name]
    shutil.copytree(whole, tmp_path / "m")
    done = damage(tmp_path / "m", seed)
    for use in uses:
        known = {"MODEL": tmp_path / "m", "OUT": tmp_path / f"o-{use[0]}"}
        assert not (wrong := attempt([*(known.get(a, a) for a in use), "--json"])), (name, use[0], done, wrong)


def test_whole_folders_are_read(folders, tmp_path):
    for name, (whole, uses) in folders.items():
        for use in uses:
            known = {"MODEL": whole, "OUT": tmp_path / f"{name}-{use[0]}"}
            assert exit_code(*(known.get(a, a) for a in use), "--json") == 0, (name, use)


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("config.json", {"quantization_config": "x"}, "quantised by x"),
        ("config.json", {"vocab_size": 10**10}, "vocab_size|has shape|10000000000"),
        ("config.json", {"intermediate_size": 10**9}, "inner=1000000000"),
        ("config.json", {"intermediate_size": 10**8}, "intermediate|has shape"),
        ("config.json", {"num_hidden_layers": 10**7}, "10000000 layers"),
        ("config.json", {"max_position_embeddings": 10**8}, "position_embeddings"),
        ("config.json", {"num_attention_heads": -2}, "heads=-2"),
        ("config.json", {"layer_norm_eps": float("nan")}, "epsilon=nan"),
        ("config.json", {"hidden_dropout_prob": -1}, "dropout=-1"),
        ("config.json", {"hidden_dropout_prob": 10**12}, "dropout=1000000000000"),
        ("config.json", {"attention_probs_dropout_prob": float("nan")}, "attention_dropout=nan"),
        ("config.json", {"id2label": ["a"]}, "id2label is \\['a'\\]"),
        ("config.json", {"id2label": {"a": "x"}}, "id2label is {'a': 'x'}"),
        ("config.json", {"architectures": [0.5]}, "architectures is \\[0.5\\]"),
        ("unmask.json", {"kind": ["x"]}, "kind"),
        ("unmask.json", {"task": {"name": "similarity"}}, "pooling"),
        ("unmask.json", {"task": "x"}, "task"),
        ("modules.json", {}, "modules.json"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, capsys, file, change, named):
    import re

    folder = tiny_folders.folder(tmp_path / "m")
    before = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(before | change))
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, _, err = run(capsys, "embed", folder, "The fox.", "--out", tmp_path / "o.npy")
    assert code == 2
    assert err.startswith("unmask: ")
    assert re.search(named, err), err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < 200_000, "kilobytes taken before it was refused"


@pytest.mark.parametrize("tied", ['["x"]', "3", '{"a": ["b"]}', '{"a": "b"}'])
def test_metadata_of_weights_is_not_believed(tmp_path, tied):
    from safetensors.torch import load_file, save_file

    path = tiny_folders.folder(tmp_path / "m") / "model.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", "tied": tied})
    note_weights(path.parent)
    with pytest.raises(UserError, match="not a whole safetensors file"):
        unmask.load(tmp_path / "m")


@pytest.mark.parametrize(("kind", "named"), [("int32", "is int32"), ("nan", "no numbers")])
def test_weights_that_are_none_are_refused(tmp_path, kind, named):
    import torch
    from safetensors.torch import load_file, save_file

    path = tiny_folders.folder(tmp_path / "m") / "model.safetensors"
    weights = load_file(path)
    name = "bert.encoder.layer.0.output.dense.weight"
    weights[name] = weights[name].view(torch.int32) if kind == "int32" else weights[name].fill_(float("nan"))
    save_file(weights, path, metadata={"format": "pt"})
    note_weights(path.parent)
    with pytest.raises(UserError, match=f"{name} .*{named}"):
        unmask.load(tmp_path / "m")


def test_a_pipe_in_place_of_a_graph_is_refused(tmp_path):
    """Opening it would wait for ever."""
    import os

    pytest.importorskip("onnx")
    from unmask.families.onnx_import import read_onnx

    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(UserError, match=r"model\.onnx: not a file"):
        read_onnx(tmp_path / "model.onnx")


def test_special_tokens_that_the_template_lacks_are_named(tmp_path, capsys):
    """The Rust library panics at the first text, with a traceback of its own."""
    folder = tiny_folders.folder(tmp_path / "m")
    made = json.loads((folder / "tokenizer.json").read_text())
    del made["post_processor"]["special_tokens"]["[SEP]"]
    (folder / "tokenizer.json").write_text(json.dumps(made))
    code, _, err = run(capsys, "inspect", folder)
    assert code == 2
    assert "tokenizer.json: its template adds [SEP]" in err
