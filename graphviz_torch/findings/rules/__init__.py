"""The rules, by family. Each family enters its rules in the table; in this order of families, the
findings of equal severity stand.
"""

from . import devices, leaves, failures  # isort: skip # noqa: F401
from . import training, paths, cuts, terms, freezing, lost, losses  # isort: skip # noqa: F401
from .meaning import axes, roles, weights, targets  # isort: skip # noqa: F401
from .meaning import arguments, computations, calls  # isort: skip # noqa: F401
from .meaning import schedulers, optimizers, compiled  # isort: skip # noqa: F401
from . import silence, values, transfers, memory  # isort: skip # noqa: F401
from .ranks import processes, steps_and_ranks, replicas  # isort: skip # noqa: F401
from . import watched, perturbed  # isort: skip # noqa: F401
