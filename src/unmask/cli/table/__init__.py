"""The commands of models of tables."""
