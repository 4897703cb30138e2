"""Clinical tables: fit, impute, complete several times, draw new rows.

`Model`, `Settings`, `load` and `pretrain` are there in every modality. Everything is imported when it is first used.
"""

from typing import TYPE_CHECKING

from unmask.plugins import lazily

if TYPE_CHECKING:
    from unmask.modalities.table.imputation.multiple import MultipleImputation as MultipleImputation
    from unmask.modalities.table.imputer import MaskedImputer as MaskedImputer
    from unmask.modalities.table.model import TableModel as TableModel
    from unmask.modalities.table.pretrain import pretrain as pretrain
    from unmask.modalities.table.recipes import TableSettings as TableSettings
    from unmask.modalities.table.registration import load as load
    from unmask.modalities.table.schema.describe import describe as describe
    from unmask.modalities.table.verbs import evaluate as evaluate
    from unmask.modalities.table.verbs import impute as impute
    from unmask.modalities.table.verbs import synthesize as synthesize

    Model = TableModel
    Settings = TableSettings

__getattr__, __dir__, __all__ = lazily(__name__)
