"""Model folders: whole or absent, both architectures, and mistakes named."""

import json

import pytest
import torch
import typer.main

from text_corpus import tokenizer
from unmask.encoder.config import MLP, EncoderConfig, SinCos
from unmask.errors import UserError
from unmask.modalities.text.network import folder as room
from unmask.modalities.text.network.folder import load_folder, new_text_model, save_folder
from unmask.writing import note_weights

DECODER = EncoderConfig(width=16, layers=1, heads=2, positions=SinCos(), feedforward=MLP(inner=32))


def build(recipe="bert", decoder=None, vocabulary=400):
    torch.manual_seed(0)
    return new_text_model(
        recipe,
        vocabulary=vocabulary,
        width=32,
        layers=3,
        heads=2,
        slots=64,
        dropout=0.2,
        tokenizer=tokenizer("wordpiece"),
        decoder=decoder,
    )


def save(folder, model, family, **more):
    save_folder(folder, model=model, tokenizer=tokenizer("wordpiece"), family=family, **more)


@pytest.mark.parametrize("decoder", [None, DECODER], ids=["in place", "visible only"])
@pytest.mark.parametrize("recipe", ["bert", "modern"])
def test_a_folder_gives_the_model_back(recipe, decoder, tmp_path):
    model, family = build(recipe, decoder)
    save(tmp_path / "new", model, family, settings={"text": {"slots": 64}})
    assert [p.name for p in tmp_path.iterdir()] == ["new"]
    again = load_folder(tmp_path / "new")
    assert again.random == again.ignored == []
    assert again.settings["text"] == {"slots": 64}
    assert again.model.encoder.config.dropout == 0.2
    before, after = model.state_dict(), again.model.state_dict()
    assert set(before) == set(after)
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert again.model.visible_only == (decoder is not None)


def test_the_decoder_is_thrown_away_with_its_file(tmp_path):
    model, family = build(decoder=DECODER)
    save(tmp_path, model, family)
    settings = load_folder(tmp_path).settings
    plain, _ = build()
    save(tmp_path, plain, family, settings=settings)
    assert not (tmp_path / room.DECODER).exists()
    assert not load_folder(tmp_path).model.visible_only


def test_a_damaged_decoder_is_named(tmp_path):
    model, family = build(decoder=DECODER)
    save(tmp_path, model, family)
    about = json.loads((tmp_path / "unmask.json").read_text())
    about["decoder"]["width"] = 8
    (tmp_path / "unmask.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match=r"decoder.safetensors: tensor .* has shape"):
        load_folder(tmp_path)
    (tmp_path / room.DECODER).unlink()
    with pytest.raises(UserError, match=r"decoder.safetensors"):
        load_folder(tmp_path)


@pytest.mark.parametrize("there", [True, False], ids=["replacing", "new"])
def test_a_failed_save_leaves_what_was_there(there, tmp_path, monkeypatch):
    model, family = build()
    target = tmp_path / "model"
    if there:
        save(target, model, family)
    before = {p.name: p.read_bytes() for p in target.iterdir()} if there else {}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room, "save_file", full)
    with pytest.raises(UserError, match="No space left"):
        save(target, build("modern")[0], build("modern")[1])
    assert {p.name: p.read_bytes() for p in target.iterdir()} == before if there else list(tmp_path.iterdir()) == []


def test_rows_without_a_token_are_never_drawn_nor_proposed(tmp_path):
    model, family = build(vocabulary=448)
    used = set(tokenizer("wordpiece").backend.get_vocab().values())
    assert set(model.codec.ordinary.tolist()) < used
    save(tmp_path, model, family)
    assert set(range(448)) - used <= set(load_folder(tmp_path).model.codec.special.tolist())


def test_a_tokenizer_larger_than_the_table_is_refused(tmp_path):
    model, family = build()
    save(tmp_path, model, family)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    with pytest.raises(UserError, match=r"the tokenizer has .* entries, the embedding table 100"):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2'"),
        ({"model_type": None}, "None"),
        ({"hidden_size": "wide"}, "config.json"),
        ({"hidden_act": "mish"}, "'mish'"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'"),
        ({"num_attention_heads": 5}, "heads=5"),
    ],
)
def test_a_config_that_cannot_be_is_named(changed, message, tmp_path):
    model, family = build()
    save(tmp_path, model, family)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(UserError, match=message):
        load_folder(tmp_path)


def test_missing_folders_and_names(tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_, **__):
        raise LocalEntryNotFoundError("no network and not in the cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(UserError, match="no such model folder"):
        load_folder(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"somebody/something.*no network"):
        load_folder("somebody/something")
    with pytest.raises(UserError, match=r"no config.json"):
        load_folder(tmp_path)


def test_a_hub_name_is_fetched(tmp_path, monkeypatch):
    import huggingface_hub

    model, family = build()
    save(tmp_path, model, family)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(tmp_path))
    assert load_folder("somebody/something").family is family


def test_what_the_file_does_not_hold_is_drawn(tmp_path):
    """Loading leaves out the drawing of random weights; a missing head must still get them, not what memory held."""
    from safetensors.torch import load_file, save_file

    from tiny_folders import folder

    path = folder(tmp_path / "m")
    weights = load_file(path / "model.safetensors")
    save_file({k: v for k, v in weights.items() if ".transform.dense" not in k}, path / "model.safetensors")
    note_weights(path)
    found = load_folder(path)
    drawn = found.model.codec.transform.weight
    assert found.random
    assert 0.2 < drawn.std() / found.model.codec.word.weight.std() < 5
    assert not found.model.codec.transform.bias.any(), "biases begin at 0, as in a model that is made anew"
    torch.testing.assert_close(
        found.model.codec.word.weight, weights["bert.embeddings.word_embeddings.weight"], atol=0, rtol=0
    )


def test_a_folder_and_its_files_are_for_their_owner_alone(tmp_path):
    from tiny_folders import folder

    modes = {p.name: p.stat().st_mode & 0o777 for p in folder(tmp_path / "m").iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o700


def test_a_model_is_shown_in_one_line(tmp_path):
    import unmask
    from tiny_folders import folder

    shown = repr(unmask.load(folder(tmp_path / "m"), precision="fp32", device="cpu"))
    assert shown.startswith("TextModel(bert: ")
    assert len(shown.splitlines()) == 1
    assert "fp32 on cpu" in shown
    assert "M parameters, 2 layers of" in shown


def test_tensors_that_the_model_does_not_use_are_said_in_one_line(tmp_path, capsys):
    """A file of two layers under a config.json of one: half of the encoder would be left out without a word."""
    import warnings

    from tiny_folders import folder
    from unmask import cli

    whole = folder(tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_folder(whole)
    config = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.warns(UserWarning, match=r"does not use: bert\.encoder\.layer\.1\..* and 1\d others") as said:
        load_folder(whole)
    assert len(said) == 1
    shown = cli._in_one_line(said[0].message, UserWarning, said[0].filename, 1)
    assert shown == f"warning: {said[0].message}\n"  # on the command line, without a place in the code
    assert cli._in_one_line("x", UserWarning, typer.main.__file__, 7) == "warning: x\n"  # which calls commands
    assert cli._in_one_line("x", UserWarning, "/elsewhere/a.py", 7).startswith("/elsewhere/a.py:7")
