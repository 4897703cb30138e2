"""Tables as they come: files and tables of other libraries, read to raw cells."""
