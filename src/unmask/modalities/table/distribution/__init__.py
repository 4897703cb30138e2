"""The distribution of every cell given others: a factor analysis, boosted stumps and a network, and what codes the
cells."""
