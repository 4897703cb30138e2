"""The run-time type checker of the tests: beartype, with whole numbers accepted where floats are expected."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
