"""Models behind HTTP: what they answer (`verbs`, `shapes`), how requests are batched (`engine`), and the server."""
