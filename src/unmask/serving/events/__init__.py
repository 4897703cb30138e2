"""Patient events as they are served: values and next events, what was expected, outcomes."""
