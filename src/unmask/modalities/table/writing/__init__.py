"""Tables out: files and tables of other libraries, with what was observed left as it was."""
