"""Import all modules with rules; each module adds its rules to the table.

Findings of equal severity are sorted in the order of these imports.
"""

from . import devices, leaves, failures  # isort: skip # noqa: F401
from . import training, clipping, paths, cuts, terms, freezing, lost, losses, custom_functions  # isort: skip # noqa: F401
from . import wrong_gradients, means, overwritten, modes, signs, unchanging  # isort: skip # noqa: F401
from . import initial_loss, unused_names, same_operands, references, derivatives  # isort: skip # noqa: F401
from .meaning import views, normalization, batch_as_time, roles, weights, targets  # isort: skip # noqa: F401
from .meaning import arguments, computations, calls, layers, tokens, results  # isort: skip # noqa: F401
from .meaning import schedulers, optimizers, compiled, arithmetic  # isort: skip # noqa: F401
from . import silence, gradient_depth, values, transfers, synchronizations, most_memory, memory  # isort: skip # noqa: F401
from .ranks import averages, collectives, in_place, steps_and_ranks, replicas  # isort: skip # noqa: F401
from . import weight_averages, watched, perturbed  # isort: skip # noqa: F401
