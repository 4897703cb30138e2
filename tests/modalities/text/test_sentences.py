"""Law: vectors of a sentence-transformers folder are those of its `encode`, or the folder is refused by name.

The reference is written here from transformers' model and tokenizer and sentence-transformers' documentation; where
that library is installed, it is asked itself."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import unmask
from text_corpus import SENTENCES, tokenizer
from unmask.cli import main
from unmask.errors import UserError
from unmask.export.folders import to_sentence_transformers
from unmask.modalities.text.network.folder import new_text_model, save_folder
from unmask.modalities.text.tasks.adapt_embedding import adapt_embedding

TEXTS = [SENTENCES[0], "The QUICK fox", "jumps over the lazy dog. " * 9, "a", "Pack my box with Five dozen"]
OLD, NEW = "sentence_transformers.models", "sentence_transformers.sentence_transformer.modules"
FLAGS = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "weightedmean": "weightedmean_tokens"}
WIDTH = 32


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    torch.manual_seed(0)
    words = tokenizer("wordpiece")
    model, family = new_text_model(
        "bert", vocabulary=words.vocab_size, width=WIDTH, layers=2, heads=2, slots=48, tokenizer=words
    )
    torch.nn.init.normal_(model.codec.token_type.weight)
    out = tmp_path_factory.mktemp("plain") / "m"
    save_folder(out, model=model, tokenizer=words, family=family)
    (out / "unmask.json").unlink()  # a stranger's folder
    return out


def dense(width=WIDTH, out=12, activation="torch.nn.modules.activation.Tanh", bias=True, **more):
    config = {"in_features": width, "out_features": out, "bias": bias, "activation_function": activation, **more}
    return (
        "Dense",
        config,
        {"linear.weight": torch.randn(out, width) * 0.3} | ({"linear.bias": torch.randn(out)} if bias else {}),
    )


def pooling(*modes, **more):
    on = {f"pooling_mode_{FLAGS.get(m, m)}": m in modes for m in {*FLAGS, *modes}}
    return "Pooling", {"word_embedding_dimension": WIDTH, **more} | on


NORMALIZE = ("Normalize",)
KINDS = {
    "dense": [pooling("mean"), dense(), NORMALIZE],
    "labse": [pooling("cls"), dense(out=WIDTH), NORMALIZE],
    "two dense": [pooling("mean"), dense(activation="torch.nn.modules.linear.Identity", bias=False), dense(12, 20)],
    "layer norm": [
        pooling("mean"),
        ("LayerNorm", {"dimension": WIDTH}, {"norm.weight": torch.rand(WIDTH), "norm.bias": torch.randn(WIDTH)}),
        ("Dropout", {"dropout": 0.5}),
    ],
    "max": [pooling("max")],
    "mean over root of length": [pooling("mean_sqrt_len_tokens")],
    "weighted mean": [pooling("weightedmean"), NORMALIZE],
    "last token": [pooling("lasttoken")],
    "two poolings": [pooling("cls", "mean"), NORMALIZE],
    "named in a list": [("Pooling", {"embedding_dimension": WIDTH, "pooling_mode": ["mean", "cls"]})],
    "prompt": [pooling("mean"), NORMALIZE],
    "prompt not pooled": [pooling("mean", include_prompt=False)],
    "prompt not weighed": [pooling("weightedmean", "cls", include_prompt=False)],
    "dot product": [pooling("cls")],
    "lower case": [pooling("mean")],
    "cut": [pooling("mean")],
    "cut by the tokenizer": [pooling("mean")],
    "cut at the start": [pooling("mean"), NORMALIZE],
    "without types": [pooling("cls"), NORMALIZE],
    "old layout": [pooling("mean"), dense()],
}


def sentence_folder(plain, out, kind, modules=OLD):
    """A folder of one of the KINDS."""
    torch.manual_seed(1)
    inner = out / "0_Transformer" if kind == "old layout" else out
    shutil.copytree(plain, inner)
    listed = [("Transformer", inner.name if inner != out else "")]
    for number, (name, *files) in enumerate(KINDS[kind], start=1):
        place = out / f"{number}_{name}"
        place.mkdir()
        if files:
            (place / "config.json").write_text(json.dumps(files[0]))
        if len(files) > 1:
            save_file(files[1], place / "model.safetensors")
        listed.append((name, place.name))
    rows = [{"idx": i, "name": str(i), "path": p, "type": f"{modules}.{n}"} for i, (n, p) in enumerate(listed)]
    (out / "modules.json").write_text(json.dumps(rows))
    about = {"max_seq_length": 12 if kind == "cut" else 40, "do_lower_case": kind == "lower case"}
    if kind == "cut by the tokenizer":
        about = {}
    (inner / "sentence_bert_config.json").write_text(json.dumps(about))
    more = {"prompts": {"query": "query: ", "passage": "The dog: "}, "similarity_fn_name": "dot"}
    if kind.startswith("prompt"):
        more["default_prompt_name"] = "passage"
    (out / "config_sentence_transformers.json").write_text(json.dumps(more if "p" in kind else {"prompts": {}}))
    named = inner / "tokenizer_config.json"
    told = json.loads(named.read_text())
    told |= {"cut by the tokenizer": {"model_max_length": 9}, "cut at the start": {"truncation_side": "left"}}.get(
        kind, {}
    )
    if kind == "without types":
        told["model_input_names"] = ["input_ids", "attention_mask"]
    named.write_text(json.dumps(told))
    return out


def reference(folder, kind, texts):
    """The vectors, by transformers and hand, in float64: the distance to them is the rounding of one side alone."""
    transformers = pytest.importorskip("transformers")
    inner = folder / "0_Transformer" if kind == "old layout" else folder
    words = transformers.AutoTokenizer.from_pretrained(inner)
    model = transformers.AutoModel.from_pretrained(inner).double().eval()
    most = {"cut": 12, "cut by the tokenizer": 9}.get(kind, 40)
    front = "The dog: " if kind.startswith("prompt") else ""
    skip = len(words(front)["input_ids"]) - 1 if kind in ("prompt not pooled", "prompt not weighed") else 0
    out = []
    for text in texts:
        text = front + (text.lower() if kind == "lower case" else text)
        fed = words(text, truncation=True, max_length=most, return_tensors="pt")
        with torch.inference_mode():
            states = model(**fed).last_hidden_state[0]
            vector = [_pooled(states, skip, KINDS[kind][0][1])]
            for name, *files in KINDS[kind][1:]:
                vector.append(_behind(vector[-1], name, *files))
        out.append(vector[-1])
    return torch.stack(out).numpy()


def _pooled(states, skip, about):
    place, kept = torch.arange(1, len(states) + 1).double()[skip:], states[skip:]
    ways = {
        "cls": kept[0],
        "max": kept.amax(0),
        "mean": kept.mean(0),
        "mean_sqrt_len_tokens": kept.sum(0) / len(kept) ** 0.5,
        "weightedmean": (kept * place[:, None]).sum(0) / place.sum(),
        "lasttoken": kept[-1],
    }
    modes = about.get("pooling_mode") or [w for w in ways if about.get(f"pooling_mode_{FLAGS.get(w, w)}")]
    return torch.cat([ways[mode] for mode in modes])


def _behind(vector, name, config=None, weights=None):
    if name == "Normalize":
        return vector / vector.norm()
    if name == "LayerNorm":
        return torch.nn.functional.layer_norm(
            vector, vector.shape, weights["norm.weight"].double(), weights["norm.bias"].double()
        )
    if name == "Dense":
        made = weights["linear.weight"].double() @ vector + weights.get("linear.bias", torch.zeros(1)).double()
        return made.tanh() if config["activation_function"].endswith("Tanh") else made
    return vector


def apart(found, expected):
    """The largest distance of an element, as a share of the largest one where that is above 1."""
    return np.abs(found - expected).max() / max(1, np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_reference_and_after_export(kind, plain, tmp_path):
    folder = sentence_folder(plain, tmp_path / "st", kind, NEW if kind == "max" else OLD)
    model = unmask.load(folder, precision="fp32", device="cpu")
    expected = reference(folder, kind, TEXTS)
    assert apart(model.embed(TEXTS), expected) <= 1e-6
    model.__dict__["padding_free"] = None  # the other way of computing them
    assert apart(model.embed(TEXTS), expected) <= 1e-6
    to_sentence_transformers(model, tmp_path / "again")
    again = unmask.load(tmp_path / "again", precision="fp32", device="cpu")
    assert apart(again.embed(TEXTS), expected) <= 1e-6
    said, kept = (one.folder.sentences.to_dict() for one in (model, again))
    assert kept == said | {"slots": model.embedded_slots}
    model.save(tmp_path / "saved")
    assert apart(unmask.load(tmp_path / "saved", precision="fp32").embed(TEXTS), expected) <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_sentence_transformers(kind, plain, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    folder = sentence_folder(plain, tmp_path / "st", kind)
    found = unmask.load(folder, precision="fp32", device="cpu")
    for at in (folder, tmp_path / "again"):
        theirs = library.SentenceTransformer(str(at), device="cpu")
        assert np.abs(found.embed(TEXTS) - theirs.encode(TEXTS)).max() <= 1e-6 * 8
        likeness = theirs.similarity(*(theirs.encode(TEXTS) for _ in "ab")).numpy()
        assert np.allclose(found.folder.sentences.similarity(*(found.embed(TEXTS) for _ in "ab")), likeness, atol=1e-4)
        if at == folder:
            to_sentence_transformers(found, tmp_path / "again")


def changed(path, **keys):
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.mark.parametrize(
    ("file", "keys", "named"),
    [
        ("2_Dense/config.json", {"activation_function": "their.code.Swish"}, "their.code.Swish"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("2_Dense/config.json", {"out_features": 13}, "linear.weight [12, 32]"),
        ("2_Dense/config.json", {"low_rank": 3}, "low_rank"),
        ("1_Pooling/config.json", {"pooling_mode_attention": True}, "pooling_mode_attention"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "best"]}, "best"),
        ("1_Pooling/config.json", {"layers": 3}, "layers"),
        ("3_Normalize/config.json", {"module_input_name": "token_embeddings"}, "token_embeddings"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "fill-mask"),
        ("sentence_bert_config.json", {"model_args": {"layers_to_keep": 3}}, "layers_to_keep"),
        ("sentence_bert_config.json", {"query_expansion": {"length": 32}}, "query_expansion"),
        ("sentence_bert_config.json", {"something_new": 1}, "something_new"),
        ("config_sentence_transformers.json", {"default_prompt_name": "none"}, "'none' is not among"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "maxsim"}, "maxsim"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "SparseEncoder"),
        ("config_sentence_transformers.json", {"model_type": None}, "model_type None"),
        ("config_sentence_transformers.json", {"truncate_dim": 4}, "truncate_dim 4"),
        ("tokenizer_config.json", {"split_special_tokens": True}, "split_special_tokens"),
        ("tokenizer_config.json", {"tokenizer_class": "BertTokenizerFast"}, "do_lower_case true"),
        ("tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"}, "holds WordPiece"),
    ],
)
def test_a_key_that_changes_vectors_is_refused_by_name(file, keys, named, plain, tmp_path):
    folder = sentence_folder(plain, tmp_path / "st", "dense")
    (folder / "3_Normalize" / "config.json").write_text("{}")
    changed(folder / file, **keys)
    with pytest.raises(UserError) as found:
        unmask.load(folder)
    assert named in found.value.what
    assert file.rsplit("/", 1)[0] in found.value.what


def test_modules_that_do_not_fit_are_refused(plain, tmp_path):
    folder = sentence_folder(plain, tmp_path / "st", "dense")
    changed(folder / "1_Pooling" / "config.json", pooling_mode_cls_token=True)
    with pytest.raises(UserError, match=r"2_Dense.*takes vectors of 32 numbers, .* have 64"):
        unmask.load(folder)


KEYS = {
    "modules.json": [{"0": {"kwargs": ["task"]}}, {"1": {"name": "pool"}}],
    "config_sentence_transformers.json": [
        {"prompts": {"passage": "a "}},
        {"prompts": {"passage": None}},
        {"default_prompt_name": "query"},
        {"similarity_fn_name": None},
        {"model_type": None},
        {"model_type": "SparseEncoder"},
        {"truncate_dim": 4},
        {"truncate_dim": None},
        {"prompt": "x: "},
        {"normalize_embeddings": True},
    ],
    "sentence_bert_config.json": [
        {"max_seq_length": 5},
        {"max_seq_length": None},
        {"do_lower_case": True},
        {"transformer_task": "fill-mask"},
        {"module_output_name": "sentence_embedding"},
        {"processing_kwargs": {"text": {"max_length": 4}}},
        {"model_args": {"attn_implementation": "eager"}},
        {"model_args": {"num_hidden_layers": 1}},
        {"tokenizer_args": {"do_lower_case": True}},
        {"processor_kwargs": {"truncation_side": "left"}},
        {"config_args": {"num_hidden_layers": 1}},
        {"unpad_inputs": True},
        {"query_length": 3},
        {"query_expansion": True},
        {"backend": "onnx"},
    ],
    "1_Pooling/config.json": [
        {"pooling_mode_mean_tokens": False},
        {"pooling_mode_cls_token": True},
        {"pooling_mode": "max"},
        {"pooling_mode": []},
        {"pooling_mode": "best"},
        {"include_prompt": False},
        {"word_embedding_dimension": 12},
    ],
    "2_Dense/config.json": [
        {"in_features": 16},
        {"bias": False},
        {"activation_function": "torch.nn.modules.linear.Identity"},
        {"activation_function": "torch.nn.ReLU"},
        {"activation_function": "torch.nn.modules.activation.Softmax"},
        {"activation_function": "torch.nn.modules.activation.PReLU"},
        {"use_residual": True},
        {"module_input_name": "token_embeddings"},
        {"module_output_name": "x"},
    ],
    "tokenizer_config.json": [
        {"do_lower_case": True},
        {"strip_accents": True},
        {"tokenize_chinese_chars": False},
        {"model_max_length": 7},
        {"truncation_side": "left"},
        {"padding_side": "left"},
        {"model_input_names": ["input_ids", "attention_mask"]},
        {"add_prefix_space": True},
        {"add_eos_token": True},
        {"tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
        {"tokenizer_class": "RobertaTokenizer"},
        {"cls_token": "[SEP]"},
        {"unk_token": "[PAD]"},
        {"additional_special_tokens": ["quick"]},
        {"extra_special_tokens": {"image": "quick"}},
        {"split_special_tokens": True},
        {"never_split": ["quick"]},
        {"max_length": 6, "truncation": True},
        {"wordpieces_prefix": "@@"},
    ],
    "config.json": [
        {"hidden_act": "relu"},
        {"layer_norm_eps": 0.1},
        {"hidden_dropout_prob": 0.5},
        {"position_embedding_type": "relative_key"},
        {"type_vocab_size": 3},
        {"is_decoder": True},
        {"num_hidden_layers": 1},
        {"num_hidden_layers": 3},
        {"num_attention_heads": 4},
        {"num_attention_heads": 3},
        {"max_position_embeddings": 20},
        {"pruned_heads": {"0": [0]}},
        {"model_type": "electra"},
        {"hidden_size": 16},
        {"vocab_size": 300},
    ],
}


@pytest.mark.parametrize(("file", "keys"), [(file, keys) for file, found in KEYS.items() for keys in found], ids=str)
def test_a_folder_with_another_key_is_read_as_sentence_transformers_does_or_refused(file, keys, plain, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    folder = sentence_folder(plain, tmp_path / "st", "dense")
    more = {"prompts": {"query": "query: ", "passage": "The dog: "}, "default_prompt_name": "passage"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(more))
    if file == "modules.json":
        rows = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps([row | keys.get(str(row["idx"]), {}) for row in rows]))
    else:
        changed(folder / file, **keys)
    try:
        found = unmask.load(folder, precision="fp32", device="cpu").embed(TEXTS)
    except UserError:
        return
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS, batch_size=1)
    assert apart(found, expected) <= 1e-5


@pytest.mark.parametrize("name", ["WeightedLayerPooling", "CNN", "LSTM", "BoW", "WordEmbeddings", "Asym"])
def test_a_module_that_is_not_built_is_refused_by_name(name, plain, tmp_path):
    folder = sentence_folder(plain, tmp_path / "st", "dense")
    rows = json.loads((folder / "modules.json").read_text())
    for place in (1, 2):
        broken = [row | {"type": f"{OLD}.{name}"} if row["idx"] == place else row for row in rows]
        (folder / "modules.json").write_text(json.dumps(broken))
        with pytest.raises(UserError, match=name):
            unmask.load(folder)
    rows[0]["type"] = "custom_st.Transformer"
    (folder / "modules.json").write_text(json.dumps(rows))
    with pytest.raises(UserError, match=r"custom_st\.Transformer"):
        unmask.load(folder)


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("tokenizer_config.json", {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}),
        ("tokenizer_config.json", {"strip_accents": False, "tokenizer_class": "BertTokenizer", "do_lower_case": True}),
        ("tokenizer_config.json", {"tokenize_chinese_chars": False, "tokenizer_class": "BertTokenizer"}),
        ("tokenizer_config.json", {"additional_special_tokens": ["quick"]}),
        ("tokenizer_config.json", {"truncation_side": "left", "model_max_length": 7}),
        ("tokenizer_config.json", {"model_max_length": 7}),
    ],
)
def test_tokens_are_those_of_transformers(file, keys, plain, tmp_path):
    transformers = pytest.importorskip("transformers")
    shutil.copytree(plain, tmp_path / "m")
    changed(tmp_path / "m" / file, **keys)
    uncased = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    changed(tmp_path / "m" / "tokenizer.json", normalizer={"type": "BertNormalizer", **uncased})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    ours = unmask.modalities.text.tokens.tokenizer.Tokenizer.load(tmp_path / "m")
    texts = ["Élan, 東京 naïve", *TEXTS]
    assert [i.tolist() for i in ours.ids(texts, max_slots=ours.longest)] == theirs(texts, truncation=True)["input_ids"]
    encoded = ours.encode(texts, max_slots=ours.longest)
    assert [e.ids.tolist() for e in encoded] == [i.tolist() for i in ours.ids(texts, max_slots=ours.longest)]


def test_a_prompt_is_chosen_by_name_or_in_words(plain, tmp_path):
    model = unmask.load(sentence_folder(plain, tmp_path / "st", "prompt"), precision="fp32")
    bare = model.embed(["query: a dog"], prompt="")
    assert np.array_equal(model.embed(["a dog"], prompt_name="query"), bare)
    assert np.array_equal(model.embed(["a dog"], prompt="query: "), bare)
    assert not np.allclose(model.embed(["a dog"]), model.embed(["a dog"], prompt=""), atol=1e-3)
    with pytest.raises(UserError, match="quary"):
        model.embed(["a dog"], prompt_name="quary")
    with pytest.raises(UserError, match="prompt_name"):
        model.embed(["a dog"], prompt="x", prompt_name="query")
    assert model.inspect()["vectors"]["default_prompt"] == "passage"


def test_another_pooling_than_a_module_was_trained_on_is_refused(plain, tmp_path):
    model = unmask.load(sentence_folder(plain, tmp_path / "st", "dense"), precision="fp32")
    with pytest.raises(UserError, match="Dense module was trained on pooling mean"):
        model.embed(TEXTS, pooling="max")
    assert np.abs(np.linalg.norm(model.embed(TEXTS, normalise=False), axis=1) - 1).max() > 0.1


@pytest.mark.parametrize("kind", ["dense", "prompt"])
def test_training_that_would_lose_part_of_the_vectors_is_refused(kind, plain, tmp_path):
    folder = sentence_folder(plain, tmp_path / "st", kind)
    rows = [{"text": text, "text2": text} for text in TEXTS]
    with pytest.raises(UserError, match="would be lost"):
        unmask.finetune(folder, rows, task="similarity", steps=1)
    (tmp_path / "t.txt").write_text("\n\n".join(TEXTS))
    with pytest.raises(UserError, match="would be lost"):
        adapt_embedding(folder, str(tmp_path / "t.txt"), tmp_path / "out")


def test_training_vectors_keeps_the_folders_pooling(plain, tmp_path):
    folder = sentence_folder(plain, tmp_path / "st", "max")
    rows = [{"text": text, "text2": text} for text in TEXTS]
    unmask.finetune(folder, rows, task="similarity", out=tmp_path / "f", steps=1, precision="fp32")
    assert json.loads((tmp_path / "f" / "unmask.json").read_text())["task"]["pooling"] == "max"


ONNX = ["dense", "labse", "layer norm", "mean over root of length", "weighted mean", "last token", "two poolings"]


@pytest.mark.parametrize(("kind", "longest"), [("cut", 12), ("cut by the tokenizer", 9)])
def test_exports_cut_texts_where_the_folder_does(kind, longest, plain, tmp_path):
    pytest.importorskip("onnxruntime")
    from unmask.export.folders import to_hf
    from unmask.export.onnx import to_onnx

    model = unmask.load(sentence_folder(plain, tmp_path / "st", kind), precision="fp32", device="cpu")
    to_onnx(model, tmp_path / "onnx")
    to_hf(model, tmp_path / "hf")
    for out in ("onnx", "hf"):
        assert json.loads((tmp_path / out / "tokenizer_config.json").read_text())["model_max_length"] == longest


@pytest.mark.parametrize("kind", [*ONNX, "prompt", "cut", "lower case"])
def test_a_graph_gives_the_folders_vectors(kind, plain, tmp_path):
    pytest.importorskip("onnxruntime")
    from unmask.export.eight_bits import session
    from unmask.export.onnx import to_onnx

    model = unmask.load(sentence_folder(plain, tmp_path / "st", kind), precision="fp32", device="cpu")
    to_onnx(model, tmp_path / "onnx")
    back = unmask.load(tmp_path / "onnx", precision="fp32", device="cpu")
    assert np.allclose(back.embed(TEXTS), model.embed(TEXTS), atol=1e-6)
    texts = [model.folder.sentences.prompt() + text for text in TEXTS]
    ids = model.tokenizer.ids(texts, max_slots=model.embedded_slots)
    fed = np.zeros((3, len(ids), max(map(len, ids))), np.int64)
    for row, own in enumerate(ids):
        fed[0, row, : len(own)], fed[1, row, : len(own)] = own, 1
    names = ("input_ids", "attention_mask", "token_type_ids")
    _, found = session(tmp_path / "onnx" / "model.onnx").run(None, dict(zip(names, fed, strict=True)))
    assert np.abs(found - model.embed(TEXTS)).max() < 1e-5


def test_a_prompt_that_is_not_pooled_has_no_graph(plain, tmp_path):
    pytest.importorskip("onnxruntime")
    from unmask.export.onnx import to_onnx

    model = unmask.load(sentence_folder(plain, tmp_path / "st", "prompt not pooled"), precision="fp32")
    with pytest.raises(UserError, match="include_prompt"):
        to_onnx(model, tmp_path / "onnx")


def test_a_plain_model_is_exported_as_embed_reads_it(plain, tmp_path):
    model = unmask.load(plain, precision="fp32")
    to_sentence_transformers(model, tmp_path / "st")
    assert np.allclose(unmask.load(tmp_path / "st", precision="fp32").embed(TEXTS), model.embed(TEXTS), atol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "prompt", "prompt not pooled", "lower case", "cut at the start"])
def test_a_server_gives_the_folders_vectors(kind, plain, tmp_path):
    from unmask.serving.text.vectors import embedding

    model = unmask.load(sentence_folder(plain, tmp_path / "st", kind), precision="fp32", device="cpu")
    work = embedding(model, TEXTS, lambda found, *_: found, truncate=True)
    assert np.abs(work.finish(work.run(work.items)) - model.embed(TEXTS)).max() < 1e-6


def test_the_command_takes_a_prompt(plain, tmp_path):
    folder = sentence_folder(plain, tmp_path / "st", "prompt")
    (tmp_path / "t.txt").write_text("a dog\n")
    told = ["embed", str(folder), str(tmp_path / "t.txt"), "--out", str(tmp_path / "v.npy"), "--precision", "fp32"]
    with pytest.raises(SystemExit) as found:
        main([*told, "--prompt-name", "query"])
    assert not found.value.code
    expected = unmask.load(folder, precision="fp32").embed(["a dog"], prompt="query: ")
    assert np.allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)
    with pytest.raises(SystemExit) as found:
        main([*told[:3], "--out", str(tmp_path / "w.npy"), "--prompt-name", "quary"])
    assert found.value.code == 2


def test_search_compares_as_the_folder_says(plain, tmp_path):
    from unmask.modalities.text.tasks.retrieval import Index

    model = unmask.load(sentence_folder(plain, tmp_path / "st", "dot product"), precision="fp32")
    (best,) = Index(model, TEXTS).search([TEXTS[0]], top=len(TEXTS))
    own = model.embed(TEXTS)
    assert [row["score"] for row in best] == pytest.approx(sorted((own @ own[0]).tolist(), reverse=True), abs=1e-3)
