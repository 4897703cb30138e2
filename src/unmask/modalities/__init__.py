"""The kinds of data that unmask hides and predicts: text, clinical tables, images and patient events, each a package of
its own."""
