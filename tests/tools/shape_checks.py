"""Checks the types in cw_plugin's signatures, for jaxtyping's import hook, which looks it up by this module's name."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as it is for mypy
