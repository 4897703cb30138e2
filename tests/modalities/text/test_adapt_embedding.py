"""`adapt --for embedding`: what is saved, what is measured, what is refused, and that a run goes on bit for bit."""

import numpy as np
import pytest

import unmask
from text_corpus import write_corpus
from unmask.errors import UserError
from unmask.modalities.text.network.pretrain import pretrain
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tasks.adapt_embedding import adapt_embedding, embedding_settings

TINY = {
    "width": 32,
    "layers": 2,
    "heads": 2,
    "vocabulary": 300,
    "slots": 32,
    "batch_slots": 256,
    "steps": 2,
    "initial_embeddings": "random",  # a base that knows nothing, which has everything to learn
}
SHORT = {
    "slots": 32,
    "batch_slots": 256,
    "steps": 12,
    "holdout": 0.2,
    "learning_rate": 3e-3,
    "patience": None,
    "guard": False,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "domain.txt", copies=120)


@pytest.fixture(scope="module", params=["modern", "bert"])
def base(request, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("base") / request.param
    settings = with_overrides(TextSettings(), {**TINY, "recipe": request.param})
    pretrain(str(corpus), out, settings=settings, console=False)
    return out


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_the_vectors_learn_and_the_folder_is_one_for_embedding(base, corpus, tmp_path):
    found = adapt_embedding(
        base, str(corpus), tmp_path / "out", settings=embedding_settings(SHORT), general=str(corpus), console=False
    )
    assert set(found.before) == {"found", "general_found"}
    assert found.after["found"] > found.before["found"]
    model = unmask.load(tmp_path / "out")
    vectors = model.embed(["a river bank", "the number of rows"])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    # The head has learnt to read the decoder, not the encoder: filling would be wrong without a word.
    with pytest.raises(UserError, match="no masked-LM head"):
        model.fill("a [MASK] bank")


def test_transformers_makes_the_same_vectors(base, corpus, tmp_path):
    transformers = pytest.importorskip("transformers")
    import torch

    adapt_embedding(base, str(corpus), tmp_path / "out", settings=embedding_settings(SHORT), console=False)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("a river bank", return_tensors="pt")
    with torch.no_grad():
        state = theirs(**tokens).last_hidden_state[0].mean(0)
    ours = unmask.load(tmp_path / "out", precision="fp32").embed("a river bank")[0]
    assert np.allclose(torch.nn.functional.normalize(state, dim=0).numpy(), ours, atol=1e-4)


def test_a_run_goes_on_bit_for_bit(base, corpus, tmp_path):
    for out, steps in (("whole", 4), ("halves", 2), ("halves", 4)):
        settings = embedding_settings({**SHORT, "steps": steps, "schedule": "constant", "warmup": 0.0})
        resume = (tmp_path / out).exists()
        adapt_embedding(base, str(corpus), tmp_path / out, settings=settings, resume=resume, console=False)
    assert weights(tmp_path / "whole") == weights(tmp_path / "halves")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"reconstruct": 0, "contrast": 0}, "nothing is left to learn"),
        ({"seen": "0.5,0.2"}, "seen=0.5,0.2"),
        ({"temperature": 0}, "temperature=0"),
        ({"width": 64}, "width=64: the model to adapt has its own"),
        ({"sean": "0.1,0.2"}, "unknown setting 'sean'"),
    ],
)
def test_wrong_settings_are_named(given, says):
    with pytest.raises(UserError, match=says):
        embedding_settings(given)


def test_a_step_that_would_be_split_is_refused(base, corpus, tmp_path):
    settings = embedding_settings({**SHORT, "accumulate": 2})
    with pytest.raises(UserError, match="the contrast compares all of a step"):
        adapt_embedding(base, str(corpus), tmp_path / "no", settings=settings, console=False)
