"""Missing cells filled: points with intervals, draws, and multiple imputation with its pooling."""
