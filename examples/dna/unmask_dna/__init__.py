"""Masked DNA as a modality of unmask: sequences as overlapping k-mers (DNABERT: Ji et al. 2021), read from FASTA."""

from unmask.modality import STANDARD, Modality

MODALITY = Modality(
    name="dna",
    plural="DNA",
    load="unmask_dna.model:DnaModel.load",
    settings="unmask_dna.model:DnaSettings",
    pretrain="unmask_dna.model:DnaModel.pretrain",
    demo="unmask_dna.model:DnaModel.run_demo",
    commands=STANDARD,
)
