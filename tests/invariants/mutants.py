"""Broken copies of the source, each of which the test of one law must notice.

A law that no broken code can fail says nothing. Every mutant is a list of exact edits and the law test that must fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LAWS = {
    1: "test_law1_no_leak.py",
    2: "test_law2_positions.py",
    3: "test_law3_alignment.py",
    4: "test_law4_neighbours.py",
    5: "test_law5_ratio.py",
    6: "test_law6_same_mask.py",
    7: "test_law7_mean_over_hidden.py",
    8: "test_law8_ties.py",
    9: "test_law9_distributions.py",
    10: "test_law10_time.py",
    12: "test_law12_batch_invariance.py",
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`edits`: (file under src/unmask, exact text found once, replacement)."""

    name: str
    law: int
    edits: tuple[tuple[str, str, str], ...]

    def apply(self, package: Path) -> None:
        for file, old, new in self.edits:
            path = package / file
            text = path.read_text()
            if text.count(old) != 1:
                raise ValueError(f"mutant {self.name!r}: {file} holds {old!r} {text.count(old)} times, expected once")
            path.write_text(text.replace(old, new))


def mutant(law: int, name: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name=name, law=law, edits=edits)


MODEL, CORRUPTION, PREDICTION = "core/model.py", "core/corruption.py", "core/prediction.py"
DENSITY = "core/density.py"
LINEAR = "kernels/linear_cross_entropy.py"
PRETRAIN, BATCH, CODEC = "core/pretrain.py", "core/batch.py", "core/token_codec.py"
CELLS, TABLE_CELLS = "modalities/table/distribution/codec.py", "modalities/table/distribution/cells.py"
TABLE_PREDICTION = "modalities/table/distribution/prediction.py"
ATTENTION, FULL = "encoder/attention.py", "encoder/full.py"
TRANSFORMER, SEGMENTS = "encoder/transformer.py", "kernels/packed_attention.py"

MUTANTS = [
    mutant(
        1,
        "mask leaves the value in, and the codec reads it",
        (MODEL, "tensor.view(-1, *tensor.shape[2:])[hidden.masked] = 0", "pass"),
        (CODEC, 'self.word(values["token"].masked_fill(masked, self.config.mask_id))', 'self.word(values["token"])'),
    ),
    mutant(
        1,
        "noise is not written",
        (MODEL, "codec.noise(values, flat, bits).items():", "():"),
    ),
    mutant(
        1,
        "noise keeps a trace of the value",
        (CODEC, "self.ordinary[(bits & (2**62 - 1))", 'self.ordinary[(values["token"].flatten()[flat] + bits % 3)'),
    ),
    mutant(
        1,
        "visible only: hidden slots stay in the encoder",
        (MODEL, "there.flatten().index_fill(0, on_host(hidden.flat), False)", "there.flatten()"),
    ),
    mutant(
        1,
        "causal: a slot sees the next one",
        (ATTENTION, "mask & (back >= 0) if self.causal", "mask & (back >= -1) if self.causal"),
    ),
    mutant(
        1,
        "causal: a slot is predicted from itself",
        (MODEL, "wanted=wanted - 1, causal=True", "wanted=wanted, causal=True"),
    ),
    mutant(
        1,
        "causal: an example's first slot is predicted from the example before",
        (CORRUPTION, "(batch.maskable & follows)", "batch.maskable"),
    ),
    mutant(
        2,
        "in place: position dropped",
        (
            MODEL,
            "return self.encoder.decode(x, segment=batch.segment, position=batch.position, wanted=wanted)",
            "return self.encoder.decode(x, segment=batch.segment, position=batch.position * 0, wanted=wanted)",
        ),
    ),
    mutant(
        2,
        "decoder: positions dropped",
        (
            MODEL,
            "self.decoder(full, segment=batch.segment, position=batch.position, wanted=wanted)",
            "self.decoder(full, segment=batch.segment, position=batch.position * 0, wanted=wanted)",
        ),
    ),
    mutant(
        4,
        "by example: positions stay in the order of the rows",
        (
            TRANSFORMER,
            "(t.flatten()[packed.source][None] for t in (segment, position))",
            "(t.flatten()[packed.source * 0 + torch.arange(len(packed.source)) % t.numel()][None] for t in (segment, "
            "position))",
        ),
    ),
    mutant(
        3,
        "by example: what was asked comes back in the order it was laid",
        (
            SEGMENTS,
            "return QuerySubset(F.pad(place, (0, more)), rank,",
            "return QuerySubset(F.pad(place, (0, more)), rank.sort().values,",
        ),
    ),
    mutant(
        4,
        "by example: examples are not told apart",
        (
            SEGMENTS,
            "out[:, 1:] = segment[:, 1:] != segment[:, :-1]",
            "out[:, 1:] = (segment[:, 1:] == 0) != (segment[:, :-1] == 0)",
        ),
    ),
    mutant(
        4,
        "by example: examples of two rows are not told apart",
        (
            MODEL,
            "for t in (numbered(segment), on_host(batch.position))",
            "for t in ((segment != 0).long(), on_host(batch.position))",
        ),
    ),
    mutant(2, "learned positions not added", (TRANSFORMER, "x = x + self.positions(position + kind.offset)", "pass")),
    mutant(
        2,
        "rotary not applied to queries",
        (FULL, "q = rotate(q, table)", "pass"),
        (FULL, "k = rotate(k, table)", "pass"),
    ),
    mutant(
        3,
        "targets one slot off",
        (CODEC, 'return values["token"].flatten()[flat]', 'return values["token"].flatten()[flat - 1]'),
    ),
    mutant(
        3,
        "kept slots dropped from the targets' places",
        (
            CORRUPTION,
            "flat=torch.from_numpy(slots.flat[chosen][order]),",
            "flat=torch.from_numpy(slots.flat[chosen][order][action != KEEP]),",
        ),
    ),
    mutant(
        1,
        "table: a masked cell's value is read",
        (MODEL, "tensor.view(-1, *tensor.shape[2:])[hidden.masked] = 0", "pass"),
        (CELLS, 'unseen = masked | (values["seen"] == 0)', 'unseen = values["seen"] == 0'),
    ),
    mutant(
        1,
        "table: a missing cell's score is read",
        (
            CELLS,
            'score = torch.where(unseen, 0.0 if guess is None else guess, values["score"].nan_to_num())',
            'score = values["score"].nan_to_num()',
        ),
        (CELLS, "which = torch.where(unseen,", "which = torch.where(masked,"),
    ),
    mutant(
        3,
        "table: bins and scores of different cells",
        (CELLS, 'values["score"].flatten()[flat].float()], -1)', 'values["score"].flatten()[flat - 1].float()], -1)'),
    ),
    mutant(
        6,
        "table: copied masks are the same in every epoch",
        (
            TABLE_CELLS,
            "donor = (hash_keys(*key, slots.identity, Salt.CELL_DONOR)",
            "donor = (hash_keys(key[0], slots.identity * 0, Salt.CELL_DONOR)",
        ),
        (
            TABLE_CELLS,
            "borrows = uniform(*key, slots.identity, Salt.CELL_HOLES_COPIED) < self.copied",
            "borrows = slots.identity == slots.identity",
        ),
    ),
    mutant(3, "noise drawn at the wrong slots", (MODEL, "[flat] = drawn.to", "[flat.flip(0) - 1] = drawn.to")),
    mutant(
        3,
        "needed slots in the wrong order",
        (TRANSFORMER, "to_device(row * most + column, device)", "to_device((row * most + column).flip(0), device)"),
    ),
    mutant(
        4,
        "attention crosses segments",
        (
            ATTENTION,
            "mask = seg_q[:, :, None] == self.segment[:, None, :]",
            "mask = (seg_q[:, :, None] == seg_q[:, :, None]) & (self.segment == self.segment)[:, None, :]",
        ),
    ),
    mutant(
        4,
        "mask skipped as if one example filled the row",
        (ATTENTION, "(segment == segment[:, :1]).all()", "torch.ones(())"),
    ),
    mutant(
        4,
        "padding is seen",
        (
            ATTENTION,
            "mask = seg_q[:, :, None] == self.segment[:, None, :]",
            "mask = (seg_q[:, :, None] == self.segment[:, None, :]) | (self.segment == 0)[:, None, :]",
        ),
    ),
    mutant(
        4,
        "positions do not restart",
        (BATCH, "np.arange(n) if e.position is None", "start + np.arange(n) if e.position is None"),
    ),
    mutant(
        4,
        "needed-only layer turns queries by the wrong position",
        (
            FULL,
            "layout.position.gather(1, queries), depth, base",
            "layout.position[:, : queries.shape[1]], depth, base",
        ),
    ),
    mutant(
        4,
        "window ignored for the needed slots",
        (ATTENTION, "mask if window is None else", "mask if window is None or queries is not None else"),
    ),
    mutant(
        5,
        "random drawn from all ids",
        (
            CODEC,
            "self.ordinary[(bits & (2**62 - 1)) % len(self.ordinary)]",
            "(bits & (2**62 - 1)) % self.config.vocabulary",
        ),
    ),
    mutant(5, "special slots may be hidden", (BATCH, "self.observed & ~self.special &", "self.observed &")),
    mutant(
        5, "missing slots may be hidden", (BATCH, "return self.observed & ~self.special &", "return ~self.special &")
    ),
    mutant(
        5,
        "twice as much noise",
        (CORRUPTION, "u < self.mask + self.random, RANDOM", "u < self.mask + 2 * self.random, RANDOM"),
    ),
    mutant(
        5,
        "units cut",
        (
            CORRUPTION,
            "return _select_evenly(slots, slots.unit, count, key)",
            "return _in_random_order(slots, slots.unit, key)[0] < count[slots.example]",
        ),
    ),
    mutant(
        5,
        "counts always rounded down",
        (CORRUPTION, "share * size + uniform(*key, identity, Salt.HIDDEN_COUNT)", "share * size"),
    ),
    mutant(
        5,
        "counts drawn slot by slot",
        (
            CORRUPTION,
            "return rank < count[slots.example]\n\n\ndef _in_random",
            "return uniform(*key, slots.identity, slots.slot, Salt.SLOT_ORDER) < 0.4\n\n\ndef _in_random",
        ),
    ),
    mutant(
        5,
        "a mixture blends its selectors",
        (
            CORRUPTION,
            "uniform(*key, slots.identity, Salt.MIXTURE) < self.share",
            "uniform(*key, slots.slot, Salt.MIXTURE) < self.share",
        ),
    ),
    mutant(
        5,
        "a mixture chooses once for all epochs",
        (
            CORRUPTION,
            "uniform(*key, slots.identity, Salt.MIXTURE) < self.share",
            "uniform(slots.identity, Salt.MIXTURE) < self.share",
        ),
    ),
    mutant(5, "spans too short", (CORRUPTION, "< 1.0 / self.mean_length", "< 2.0 / self.mean_length")),
    mutant(6, "key without epoch", (CORRUPTION, "key = (seed, 0 if self.static else epoch)", "key = (seed, 0)")),
    mutant(6, "static masks change", (CORRUPTION, "key = (seed, 0 if self.static else epoch)", "key = (seed, epoch)")),
    mutant(6, "key without seed", (CORRUPTION, "key = (seed, 0 if self.static else epoch)", "key = (0, epoch)")),
    mutant(
        6,
        "place in the batch instead of identity",
        (
            CORRUPTION,
            "uniform(*key, slots.identity, slots.slot, Salt.SLOT_ORDER)",
            "uniform(*key, slots.example, slots.slot, Salt.SLOT_ORDER)",
        ),
    ),
    mutant(
        6,
        "place in the row instead of the example",
        (CORRUPTION, "slot = flat - first[run[flat]]", "slot = flat % slots"),
    ),
    mutant(
        6,
        "noise bits from the process",
        (CORRUPTION, "bits = hash_keys(*key, ", "bits = hash_keys(hash('bits'), *key, "),
    ),
    mutant(
        7,
        "mean over micro-batches",
        (
            PRETRAIN,
            "batch, masked, context, divisor)",
            "batch, masked, context, max(masked.total_weight, 1) * len(batches))",
        ),
    ),
    mutant(
        7,
        "mean over this process's slots only",
        (
            PRETRAIN,
            "counts = context.total(counts.to(context.device)).cpu()",
            "pass",
        ),
    ),
    mutant(
        7,
        "micro-batches counted by the first alone",
        (PRETRAIN, "_scale_gradients(model, divisor / (weight or 1.0))", "pass"),
    ),
    mutant(7, "averaging over processes forgotten", (PRETRAIN, "(loss * (context.processes / ", "(loss * (1 / ")),
    mutant(7, "only the last chunk's gradient", (LINEAR, "grad_w += partial", "grad_w = partial.clone()")),
    mutant(
        7,
        "buffer shared by two losses",
        (LINEAR, "BUFFERS.lend if grad_w is None else", "BUFFERS.take if grad_w is None else"),
    ),
    mutant(
        7, "exponentials shared by two losses", (LINEAR, "BUFFERS.lend if single else", "BUFFERS.take if single else")
    ),
    mutant(7, "a slot's weight is its sum", (LINEAR, "part[:n] / self.sum[:, None] if", "part[:n] if")),
    mutant(
        7,
        "weighted slots, divided by their number",
        (
            CORRUPTION,
            "if self.weight is None:\n            return float(len(self))",
            "if True:\n            return float(len(self))",
        ),
    ),
    mutant(7, "weights reach the loss, not the gradient", (LINEAR, "part = part * ones_of_part.t()", "pass")),
    mutant(7, "weights reach the weights' gradient, not the states'", (LINEAR, "*= ones_of_part.t()", "*= 1")),
    mutant(7, "in bf16 weights reach the loss alone", (LINEAR, "else counts / self.sum", "else 1 / self.sum")),
    mutant(
        5,
        "counts of a density rounded down",
        (CORRUPTION, "np.ceil(share * size)", "np.floor(share * size)"),
    ),
    mutant(5, "examples draw alike", (DENSITY, "view(np.uint64) * _STEPS[0]", "view(np.uint64) * np.uint64(1)")),
    mutant(
        5,
        "weights of whole batches",
        (CORRUPTION, "return weigh(hidden, maskable, progress)", "return weigh(hidden * 0 + 3, maskable, progress)"),
    ),
    mutant(5, "the bound forgets the density", (DENSITY, "/ np.maximum((high - low) * n, 1e-6)", "")),
    mutant(
        6,
        "a density's draws ignore the epoch",
        (DENSITY, "np.asarray(epoch).astype(np.int64)", "np.asarray(0).astype(np.int64)"),
        (CORRUPTION, "uniform(*key, slots.identity, slots.slot, Salt.SLOT_ORDER)", "uniform(slots.slot)"),
    ),
    mutant(
        6,
        "a density's draws by place in the batch",
        (CORRUPTION, "spread_evenly(*key, identity)", "spread_evenly(*key, np.arange(slots.examples))"),
    ),
    mutant(
        9,
        "normals are drawn too wide",
        (PREDICTION, "else (0.5 * self.log_variance).exp()", "else self.log_variance.exp()"),
    ),
    mutant(
        9,
        "sure where the spread is large",
        (PREDICTION, "return -self.log_variance.sum(-1)", "return self.log_variance.sum(-1)"),
    ),
    mutant(
        9,
        "probabilities are logarithms",
        (PREDICTION, "return self.log_probs.exp()", "return self.log_probs"),
    ),
    mutant(
        9,
        "the mean of a category is its number",
        (TABLE_PREDICTION, 'raise no_mean("categories")', "return self.point()"),
    ),
    mutant(
        9,
        "table: draws forget what the network says of bins",
        (TABLE_PREDICTION, "log_p = self.log_probs()[member, row]", "log_p = self.masses().log()[member, row]"),
    ),
    mutant(
        9,
        "table: the mean is that of the normal",
        (
            TABLE_PREDICTION,
            "return (p * total / mass.clamp_min(1e-12)).sum(-1).mean(0)",
            "return self.location.mean(0)",
        ),
    ),
    mutant(
        12,
        "texts share rows",
        (
            "modalities/text/uses/model.py",
            "self.model.encoder.batch_invariant = True",
            "self.model.encoder.batch_invariant = False",
        ),
    ),
]
