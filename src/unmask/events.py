"""Patient events: convert, pretrain, fill, score and predict outcomes.

`Model`, `Settings`, `load` and `pretrain` are there in every modality. Everything is imported when it is first used.
"""

from typing import TYPE_CHECKING

from unmask.plugins import lazily

if TYPE_CHECKING:
    from unmask.modalities.events.audit.audit_points import audit as audit
    from unmask.modalities.events.audit.audit_task import labels as labels
    from unmask.modalities.events.network.prepare import prepare as prepare
    from unmask.modalities.events.recipes import EventSettings as EventSettings
    from unmask.modalities.events.recipes import OutcomeSettings
    from unmask.modalities.events.recipes import with_overrides as with_overrides
    from unmask.modalities.events.records.labels import read_labels as read_labels
    from unmask.modalities.events.records.meds import read_meds as read_meds
    from unmask.modalities.events.sources.convert import convert as convert
    from unmask.modalities.events.synthesis.generate import generate as generate
    from unmask.modalities.events.synthesis.judge import compare as compare
    from unmask.modalities.events.uses.model import EventModel as EventModel
    from unmask.modalities.events.uses.model import load as load
    from unmask.modalities.events.uses.next_visit import finetune_next_visit as finetune_next_visit
    from unmask.modalities.events.uses.pretrain import pretrain as pretrain
    from unmask.modalities.events.uses.verbs import ask as ask
    from unmask.modalities.events.uses.verbs import evaluate as evaluate
    from unmask.modalities.events.uses.verbs import finetune as finetune
    from unmask.modalities.events.uses.verbs import predict as predict

    Model = EventModel
    Settings = EventSettings
    FinetuneSettings = OutcomeSettings

__getattr__, __dir__, __all__ = lazily(__name__)
