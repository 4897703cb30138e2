"""The six steps: what they report, when they end, and that a tiny model learns."""

from __future__ import annotations

import math
import weakref
from itertools import repeat

import pytest
import torch

from tiny import Setup, numbers, ratio_corruption
from unmask.core.batch import pack
from unmask.core.model import MaskedModel, lacking
from unmask.core.pretrain import StepContext, pretrain, validate


def trained(setup: Setup, steps: int, batches: list, learning_rate: float = 3e-3) -> list:
    optimiser = torch.optim.AdamW(setup.model.parameters(), lr=learning_rate)

    def update(progress: float) -> tuple[float, bool]:
        norm = torch.nn.utils.clip_grad_norm_(setup.model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(norm), True

    run = pretrain(
        setup.model,
        repeat((0, batches)),
        ratio_corruption(0.3),
        StepContext(update=update),
        seed=setup.seed,
        progress=lambda step: step / steps,
    )
    return list(run)


def test_reports_count_real_slots_and_the_run_ends(setup: Setup):
    batches = [pack(setup.examples(20, 9), slots=32), pack(setup.examples(14), slots=32)]
    reports = trained(setup, 4, batches)
    assert [r.step for r in reports] == [1, 2, 3, 4]
    assert [r.progress for r in reports] == [0, 0.25, 0.5, 0.75]
    hidden = sum(len(ratio_corruption(0.3).draw(b, seed=setup.seed)) for b in batches)
    for r in reports:
        assert (r.slots, r.hidden, r.skipped) == (43, hidden, False)
        assert r.padding_waste == pytest.approx(1 - 43 / 64)
        assert math.isfinite(r.loss)
        assert r.seconds > 0
        assert r.gradient_norm > 0
        assert (r.accuracy is None) == (setup.modality.name in ("vector", "images", "images-holes"))


def test_it_learns(setup: Setup):
    """The same masks every step: what is hidden can be learnt by heart."""
    reports = trained(setup, 25, [pack(setup.examples(20, 9, 14), slots=48)], 5e-3)
    first, last = reports[0].loss, reports[-1].loss
    assert last < first - 0.5


def test_a_step_numbers_go_on_after_a_resume(setup: Setup):
    batch = pack(setup.examples(10), slots=16)
    run = pretrain(
        setup.model,
        repeat((2, [batch])),
        ratio_corruption(),
        StepContext(update=lambda progress: (0.0, False)),
        first_step=5,
        progress=lambda step: step / 7,
    )
    assert [(r.step, r.epoch, r.skipped) for r in run] == [(6, 2, True), (7, 2, True)]


def test_validation_repeats_itself_and_leaves_the_model_as_it_was(setup: Setup):
    batches = [pack(setup.examples(20, 9), slots=32), pack(setup.examples(14), slots=32)]
    setup.model.train()
    first = validate(setup.model, batches, ratio_corruption(0.3), seed=1)
    assert setup.model.training
    assert validate(setup.model, batches, ratio_corruption(0.3), seed=1) == first
    total = 0.0
    for b in batches:
        hidden = ratio_corruption(0.3).draw(b, seed=1)
        with torch.no_grad():
            total += float(setup.model.eval()(b, hidden).loss(setup.model.codec.targets(b.values, hidden.flat)))
    assert ("accuracy" in first) == (setup.modality.name in ("text", "table", "events", "events-known"))
    assert first["loss"] * first["hidden_slots"] == pytest.approx(total, rel=1e-5)


def test_predicted_values_can_be_written_back(setup: Setup):
    batch = pack(setup.examples(12), slots=16)
    hidden = ratio_corruption(0.4).draw(batch, seed=2)
    prediction = setup.model(batch, hidden)
    written = setup.model.codec.write(batch.values, hidden.flat, prediction.mode())
    torch.testing.assert_close(setup.model.codec.targets(written, hidden.flat), prediction.mode())
    assert numbers(prediction).isfinite().all()


def test_nothing_of_a_batch_is_kept_while_the_next_one_is_made(setup: Setup):
    """Neither its values nor what was predicted: kept ones are memory that no forecast knows of, and holes in it."""
    kept: list[weakref.ref] = []
    predict = setup.model.codec.predict

    def predicted(*given):
        found = predict(*given)
        kept.append(weakref.ref(found))
        return found

    def one():
        assert not [ref() for ref in kept if ref() is not None]
        batch = pack(setup.examples(20, 9), slots=32)
        kept.extend(weakref.ref(value) for value in batch.values.values())
        return batch

    class Two:
        def __len__(self) -> int:
            return 2

        def __iter__(self):
            return (one() for _ in range(2))

    setup.model.codec.predict = predicted
    reports = pretrain(
        setup.model,
        repeat((0, Two())),
        ratio_corruption(0.3),
        StepContext(update=lambda _: (0.0, True)),
        progress=lambda step: step / 2,
    )
    for _ in reports:
        assert all(ref() is None for ref in kept)
    assert len(kept) == 4 * (1 + len(one().values))
    kept.clear()
    validate(setup.model, (one() for _ in range(3)), ratio_corruption(0.3))
    assert len(kept) > 3


def test_a_batch_cut_by_rows_is_judged_as_the_whole(setup: Setup):
    batch = pack(setup.examples(20, 9, 14, 12, 17), slots=24)
    parts = batch.cut(2)
    assert [part.shape[0] for part in parts] == [2] * (batch.shape[0] // 2) + [1] * (batch.shape[0] % 2)
    assert batch.cut(batch.shape[0])[0] is batch
    whole, cut = (validate(setup.model, some, ratio_corruption(0.3)) for some in ([batch], parts))
    assert cut == pytest.approx(whole, rel=1e-4)


def test_a_codec_that_lacks_a_member_is_refused():
    class Half(torch.nn.Module):
        context_channels = ()

        def embed(self, values, masked): ...

    assert lacking(Half()) == ["drops_missing", "noise", "targets", "write", "predict"]
    with pytest.raises(Exception, match=r"Half"):  # of the shape checker here, a TypeError without it
        MaskedModel(Half(), torch.nn.Identity())
