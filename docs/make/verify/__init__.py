"""The figures of the pages, remade: `python docs/make/doc_verify.py`."""
