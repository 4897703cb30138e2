"""Embeddings do not depend on what they are batched with, and are the pooled states they say they are."""

import numpy as np
import pytest
import torch

from tiny import MODALITIES, Setup, make_model
from unmask.core.batch import Example, pack
from unmask.core.embed import embed, embed_batches, pool, pooled_by
from unmask.core.inference import packed_batches
from unmask.errors import UserError

POOLINGS = ("mean", "first", "max")


@pytest.mark.parametrize("pooling", POOLINGS)
def test_order_and_neighbours_do_not_matter(setup: Setup, pooling: str) -> None:
    examples = setup.examples(11, 3, 18, 7, 30, 4)
    together = embed(setup.model, examples, slots=64, batch_slots=80, pooling=pooling)  # type: ignore[arg-type]
    alone = [embed(setup.model, [e], slots=64, pooling=pooling)[0] for e in examples]  # type: ignore[arg-type]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("shared_rows", [True, False])
def test_an_example_without_slots_is_zero(pooling: str, shared_rows: bool) -> None:
    model, example = make_model(MODALITIES["text"], "in_place", "bert", 0), MODALITIES["text"].example(0, 5)
    none = Example(values={"token": np.zeros(0, np.int64)}, identity=1)
    found = embed(model, [none, example], slots=64, pooling=pooling, shared_rows=shared_rows)  # type: ignore[arg-type]
    np.testing.assert_allclose(found[0], 0)
    np.testing.assert_allclose(found[1], embed(model, [example], slots=64, pooling=pooling)[0], atol=1e-5)  # type: ignore[arg-type]


def test_batches_of_the_callers_own(setup: Setup) -> None:
    """Vectors stand where the caller's numbers say; an example of no batch is zero."""
    examples = setup.examples(11, 3, 18, 7)
    batches = ((pack([examples[i]], slots=32), np.array([i])) for i in (3, 0, 1))
    found = embed_batches(setup.model, batches, pooled_by("mean"), count=4, normalise=True)
    expected = embed(setup.model, examples, slots=32, normalise=True)
    np.testing.assert_allclose(found[[0, 1, 3]], expected[[0, 1, 3]], atol=1e-5)
    assert not found[2].any()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_packed_rows_give_the_same(setup: Setup, pooling: str) -> None:
    examples = setup.examples(11, 3, 18, 7)
    batch = pack(examples, slots=32)
    assert batch.shape[0] < len(examples)
    with torch.no_grad():
        packed = pool(setup.model, batch, len(examples), pooling, True)  # type: ignore[arg-type]
    np.testing.assert_allclose(packed, embed(setup.model, examples, slots=64, pooling=pooling), atol=1e-5)  # type: ignore[arg-type]


def test_pooling_is_what_it_says() -> None:
    text = MODALITIES["text"]
    model, example = make_model(text, "in_place", "bert"), text.example(5, 9)
    with torch.no_grad():
        states = model.states(pack([example], slots=9))[0]
    inner = states[1:-1]
    expected = {
        ("mean", True): states.mean(0),
        ("max", True): states.amax(0),
        ("first", True): states[0],
        ("mean", False): inner.mean(0),
        ("max", False): inner.amax(0),
    }
    for (pooling, special), vector in expected.items():
        with torch.no_grad():
            got = pool(model, pack([example], slots=9), 1, pooling, special)[0]  # type: ignore[arg-type]
        np.testing.assert_allclose(got, vector, atol=1e-5)
    unit = embed(model, [example], slots=64, normalise=True)[0]
    np.testing.assert_allclose(unit, states.mean(0) / states.mean(0).norm(), atol=1e-5)


def test_missing_slots_are_not_pooled() -> None:
    vector = MODALITIES["vector"]
    model, example = make_model(vector, "in_place", "bert"), vector.example(5, 20)
    assert not example.observed.all()
    with torch.no_grad():
        states = model.states(pack([example], slots=20))[0]
    np.testing.assert_allclose(embed(model, [example], slots=64)[0], states[example.observed].mean(0), atol=1e-5)


def test_batches_hold_every_example_once_within_the_budget(rng: np.random.Generator) -> None:
    text = MODALITIES["text"]
    examples = [text.example(i, int(n)) for i, n in enumerate(rng.integers(3, 300, 200))]
    seen: list[int] = []
    for batch, numbers in packed_batches(examples, 300, 1024):
        assert batch.segment.numel() <= 1024
        for i, number in enumerate(numbers.tolist()):
            inside = batch.index == i
            assert np.array_equal(batch.values["token"][inside].numpy(), examples[number].values["token"])
        seen += numbers.tolist()
    assert sorted(seen) == list(range(200))


def test_errors_and_nothing() -> None:
    text = MODALITIES["text"]
    model = make_model(text, "in_place", "bert")
    assert embed(model, [], slots=16).shape == (0, 32)
    with pytest.raises(UserError, match="20 slots"):
        embed(model, [text.example(1, 20)], slots=16)
