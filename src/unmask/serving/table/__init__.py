"""Tables as they are served: rows as objects of JSON, completed, scored, drawn."""
