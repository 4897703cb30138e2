"""Patient events: convert, pretrain, fill, score and predict outcomes.

`Model`, `Settings`, `load` and `pretrain` are there in every modality. Everything is imported when it is first used.
"""

from typing import TYPE_CHECKING

from unmask.lazy import lazily

if TYPE_CHECKING:
    from unmask.modalities.events.audit import audit as audit
    from unmask.modalities.events.convert import convert as convert
    from unmask.modalities.events.finetune import finetune_outcome
    from unmask.modalities.events.meds import read_labels as read_labels
    from unmask.modalities.events.meds import read_meds as read_meds
    from unmask.modalities.events.model import EventModel as EventModel
    from unmask.modalities.events.model import load as load
    from unmask.modalities.events.next_visit import finetune_next_visit as finetune_next_visit
    from unmask.modalities.events.prepare import prepare as prepare
    from unmask.modalities.events.pretrain import pretrain as pretrain
    from unmask.modalities.events.recipes import EventSettings as EventSettings
    from unmask.modalities.events.recipes import OutcomeSettings
    from unmask.modalities.events.recipes import with_overrides as with_overrides

    Model = EventModel
    Settings = EventSettings
    FinetuneSettings = OutcomeSettings
    finetune = finetune_outcome

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "Model": "unmask.modalities.events.model:EventModel",
        "Settings": "unmask.modalities.events.recipes:EventSettings",
        "EventModel": "unmask.modalities.events.model:EventModel",
        "EventSettings": "unmask.modalities.events.recipes:EventSettings",
        "FinetuneSettings": "unmask.modalities.events.recipes:OutcomeSettings",
        "load": "unmask.modalities.events.model:load",
        "prepare": "unmask.modalities.events.prepare:prepare",
        "pretrain": "unmask.modalities.events.pretrain:pretrain",
        "finetune": "unmask.modalities.events.finetune:finetune_outcome",
        "finetune_next_visit": "unmask.modalities.events.next_visit:finetune_next_visit",
        "convert": "unmask.modalities.events.convert:convert",
        "audit": "unmask.modalities.events.audit:audit",
        "read_meds": "unmask.modalities.events.meds:read_meds",
        "read_labels": "unmask.modalities.events.meds:read_labels",
        "with_overrides": "unmask.modalities.events.recipes:with_overrides",
    },
)
