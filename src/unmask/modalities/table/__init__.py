"""Clinical tables: hide cells, predict them back; then impute, synthesise, augment. A cell is a slot."""
