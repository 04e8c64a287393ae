"""How annotations are checked under pytest: by beartype, where an int is a float, as in PEP 484."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
