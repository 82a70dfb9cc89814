"""The rules, by family. Each family enters its rules in the table; in this order of families, the
findings of equal severity stand."""

from . import devices, leaves, failures  # isort: skip # noqa: F401
from . import training, paths, cuts, terms, freezing, dropped, losses  # isort: skip # noqa: F401
from . import values, transfers, memory, across  # isort: skip # noqa: F401
