"""An event model folder: config.json, model.safetensors and unmask.json (vocabulary, settings, outcome head)."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from unmask.core.model import MaskedModel
from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Gated, Learned, Norm, Rotary
from unmask.encoder.kinds import Full, Local
from unmask.errors import UserError, either
from unmask.evaluation.card import add_card, remembered
from unmask.files import check_weights, damaged
from unmask.modalities.events.network.codec import EventCodec
from unmask.modalities.events.outcome.outcome import OutcomeHead
from unmask.modalities.events.questions.query_fit import QueryModel
from unmask.modalities.events.questions.query_head import QueryHead
from unmask.modalities.events.recipes import EventSettings, structure_of, with_overrides
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.training.checkpoint import read_weights
from unmask.writing import brought_to_an_end, written_folder

FORMAT = 4
"""Of the folder, and of the network that its settings describe."""
ROTARY = Rotary(base=10_000.0)
"""What counts between events is how many time stamps lie between them."""


@dataclass
class EventFolder:
    """A loaded folder: model, vocabulary, settings; where fine-tuned, the outcome head; what its card says
    of data and figures."""

    model: MaskedModel[EventCodec]
    vocabulary: Vocabulary
    settings: EventSettings
    head: OutcomeHead | None = None
    outcome: dict[str, Any] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def fine_tuning(self) -> dict[str, Any]:
        """What the folder says of its outcome head: settings, target, patients."""
        if self.outcome is None:
            flags, call = "unmask finetune outcome MODEL MEDS", "unmask.events.finetune(model, meds, labels=task)"
            raise UserError("the model has no outcome head", hint=f"Fine-tune it: {either(flags, call)}.")
        return self.outcome


def new_model(settings: EventSettings, codes: int) -> MaskedModel[EventCodec]:
    """A new model with random weights, made from the seed alone."""
    torch.manual_seed(settings.train.seed)
    shape = structure_of(settings)
    codec = EventCodec(
        codes=codes,
        width=settings.width,
        weights=(settings.code_weight, settings.value_weight, settings.time_weight),
        structure=shape,
        deviation=0.02 if shape.post else 1.0,
    )
    decoder = None
    if settings.architecture == "visible_only":
        # About half of the encoder's, of heads of even width: rotary positions turn pairs.
        each = max(16, settings.width // (2 * settings.heads))
        width = settings.heads * (each + each % 2)
        decoder = EncoderConfig(
            width=width,
            layers=1,
            heads=settings.heads,
            norm=Norm(placement="pre"),
            positions=ROTARY,
            feedforward=MLP(inner=2 * width),
            initial_deviation=width**-0.5,
        )
    encoder = make_encoder(encoder_of(settings))
    if not settings.questions:
        return MaskedModel(codec, encoder, decoder)
    model = QueryModel(codec, encoder, decoder)
    model.queries, model.weight = QueryHead(codes, settings.width, settings.heads), settings.question_weight
    return model


def encoder_of(settings: EventSettings) -> EncoderConfig:
    """The encoder that the settings' structure asks for."""
    shape = structure_of(settings)
    known: dict[str, Any] = {"learned": Learned(slots=settings.slots), "rotary": ROTARY, "none": None}
    return EncoderConfig(
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        norm=Norm(placement="post" if shape.post else "pre"),
        positions=known[shape.positions],
        feedforward=Gated(inner=settings.inner) if shape.gated else MLP(inner=settings.inner),
        attention=Local(window=settings.window, global_every=settings.global_every) if settings.window else Full(),
        initial_deviation=0.02 if shape.post else settings.width**-0.5,
    )


def save_folder(out: str | Path, folder: EventFolder, *, about: dict[str, Any] | None = None) -> None:
    """Write the folder's three files and its model card."""
    parts = {"model": folder.model, "head": folder.head}
    state = {f"{name}.{k}": v for name, part in parts.items() if part is not None for k, v in part.state_dict().items()}
    state = {k: v.detach().cpu().contiguous().clone() for k, v in state.items()}
    settings = dataclasses.asdict(folder.settings)
    config = {"model_type": "unmask-events", "codes": len(folder.vocabulary)}
    config |= {k: settings[k] for k in ("architecture", "width", "layers", "heads", "inner", "slots")}
    more = {"kind": "events", "format": FORMAT, "events": settings, "vocabulary": folder.vocabulary.to_dict()}
    more |= remembered(about or {}, Path(out))
    if folder.head is not None:
        more |= {"outcome": folder.outcome, "head": folder.head.shape()}

    with written_folder(out) as new:
        save_file(state, new / "model.safetensors", metadata={"format": "pt"})
        (new / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        (new / "unmask.json").write_text(json.dumps(more, ensure_ascii=False), encoding="utf-8")
        add_card(new, out)


def load_folder(path: str | Path) -> EventFolder:
    """Load what `save_folder` wrote."""
    path = Path(path).expanduser()
    brought_to_an_end(path)
    with damaged(path):
        about = json.loads((path / "unmask.json").read_text(encoding="utf-8"))
        if about.get("format") != FORMAT:
            raise UserError(
                f"{path}: written by another version, whose network is another one", hint="Pretrain it again."
            )
        check_weights(path, about)
        weights = read_weights(path / "model.safetensors")
        settings = with_overrides(EventSettings(), about["events"])
        vocabulary = Vocabulary.from_dict(about["vocabulary"])
        model = new_model(settings, len(vocabulary))
        head = OutcomeHead(**about["head"]) if "head" in about else None
        for name, part in (("model.", model), ("head.", head)):
            if part is not None:
                part.load_state_dict({k.removeprefix(name): v for k, v in weights.items() if k.startswith(name)})
    return EventFolder(
        model=model.eval(),
        vocabulary=vocabulary,
        settings=settings,
        head=head,
        outcome=about.get("outcome"),
        about={name: about[name] for name in ("data", "source", "results", "counts") if name in about},
    )
