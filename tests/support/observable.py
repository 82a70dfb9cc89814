"""Collect everything that a recording could leave behind, to compare before and after."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import warnings
from collections import Counter
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as _  # noqa: F401  (its name is taken by torch.optim itself)
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_OWNERS = (
    torch,
    torch.autograd,
    torch.autograd.graph,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.functional,
    torch.overrides,
    torch.nn.modules.module,
    torch.optim.Optimizer,
    torch.autograd.Function,
    sys.modules["torch.nn.parallel.data_parallel"],
    sys.modules["torch.nn.utils.clip_grad"],
    sys.modules["torch.optim.optimizer"],
    threading,
    sys,
)


def observable() -> dict[str, Any]:
    """Return modes, hooks, keys, functions, interpreter settings and our live objects."""
    gc.collect()
    found: dict[str, Any] = {
        "function modes": list(_get_current_function_mode_stack()),
        "dispatch modes": list(_get_current_dispatch_mode_stack()),
        "included keys": str(torch._C._dispatch_tls_local_include_set()),
        "excluded keys": str(torch._C._dispatch_tls_local_exclude_set()),
        "kernels": torch._C._dispatch_get_registrations_for_dispatch_key("AutocastIPU"),
        "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "transforms": torch._C._functorch.maybe_current_level(),
        "module hooks": [
            (name, list(getattr(nn_module, name)))
            for name in dir(nn_module)
            if name.startswith("_global_") and name.endswith("_hooks")
        ],
        "class of torch.compiler": type(torch.compiler),
        "optimizer hooks": len(sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks),
        "modes": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.is_autocast_cache_enabled(),
            torch.is_anomaly_enabled(),
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.autograd._profiler_enabled(),
        ),
        "interpreter": (
            gc.isenabled(),
            gc.get_threshold(),
            list(gc.callbacks),
            sys.gettrace(),
            sys.getprofile(),
            sys.getswitchinterval(),
            signal.getsignal(signal.SIGINT),
            list(warnings.filters),
            list(sys.meta_path),
        ),
        "switches of dynamo": switches_of_dynamo(),
        "ours": {
            kind.__qualname__: count
            for kind, count in Counter(map(type, gc.get_objects())).items()
            if str(kind.__module__).startswith("graphviz_torch.") and kind.__name__ in _RECORDING
        },
    }
    for owner in _OWNERS:
        for name, value in vars(owner).items():
            if callable(value) and not isinstance(value, type):
                found[f"{owner.__name__}.{name}"] = id(value)
    return found


def switches_of_dynamo() -> list[str]:
    """Return the names of those functions by which Dynamo selects code that are replaced now."""
    names = {
        "torch._dynamo.eval_frame": (
            *("set_eval_frame", "_maybe_set_eval_frame", "_is_skip_guard_eval_unsafe_stance"),
        ),
        "torch._dynamo.trace_rules": ("check",),
    }
    return [
        name
        for module, each in names.items()
        for name in each
        if not str(
            getattr(getattr(sys.modules.get(module), name, None), "__module__", "torch")
        ).startswith("torch")
    ]


# Classes whose objects exist only while something is recorded or simulated.
_RECORDING = {
    "Session",
    "Program",
    "CallStack",
    "ParameterTable",
    "_ModuleCall",
    "LiveGraph",
    "Memory",
}
_RECORDING |= {
    "CallWatch",
    "Cuts",
    "CutRecord",
    "Tracker",
    "Copies",
    "Changes",
    "Steps",
    "Gradients",
    "Failures",
}
_RECORDING |= {
    "ModuleWatch",
    "EngineWatch",
    "StepWatch",
    "OperatorWatch",
    "_Placement",
    "_Construction",
}


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the entries that differ, as (before, after)."""
    names = before.keys() | after.keys()
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    }


def objects_of_ours() -> Counter[str]:
    """Return the number of live objects of each class of the package."""
    gc.collect()
    kinds = Counter(map(type, gc.get_objects())).items()
    ours = [(k, n) for k, n in kinds if str(getattr(k, "__module__", "")).startswith("graphviz_to")]
    return sum((Counter({kind.__qualname__: count}) for kind, count in ours), Counter())
