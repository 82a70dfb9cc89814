"""Fixtures of all tests. No test may leave a hook, a mode or a changed default behind."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from logging.handlers import BufferingHandler

import pytest
import torch
from hypothesis import settings
from torch.nn.modules import module as nn_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from graphviz_torch import simulate_accelerator
from tests.support.observable import switches_of_dynamo

gc.disable()  # until all tests are collected: nearly all that is imported stays

# pytest's own handlers (`-p no:logging`) would make torch write a log of each compilation, which
# takes a tenth of its time. Without a handler Python writes warnings to stderr.
logging.getLogger().addHandler(logging.NullHandler())

collect_ignore = ["bench"]  # programs to run by hand; some train when they are imported

# A run says of the code alone whether it is right; --hypothesis-profile=default draws other cases.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collections: they are half a million."""
    freeze()
    gc.enable()


def freeze() -> None:
    """Exclude all objects from garbage collections, and from searches for optimizers."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def no_old_garbage() -> Iterator[None]:
    """Exclude objects that a test file has imported: Dynamo and transformers have a million."""
    yield
    freeze()


@pytest.fixture(autouse=True)
def no_imported_garbage() -> Iterator[None]:
    """Exclude objects that a test has imported, such as Dynamo, from the next test on."""
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + 100:
        freeze()


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Leave out `fsync`: the files of tests need not outlast a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_seeds_of_missing_devices() -> Iterator[None]:
    """Leave out the seeds of devices that are not there: PyTorch keeps the stack of each seed."""
    with pytest.MonkeyPatch.context() as patch:
        for devices in (torch.cuda, torch.mtia, torch.xpu):
            if not devices.is_available():
                patch.setattr(devices, "manual_seed_all", lambda seed: None)
        yield


def _installed() -> dict[str, object]:
    return {
        "function modes": list(_get_current_function_mode_stack()),
        "dispatch modes": list(_get_current_dispatch_mode_stack()),
        "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "module hooks": [
            len(getattr(nn_module, name))
            for name in dir(nn_module)
            if name.startswith("_global_") and name.endswith("_hooks")
        ],
        "question for module hooks": nn_module._has_any_global_hook,
        "class of torch.compiler": type(torch.compiler),
        "switches of dynamo": switches_of_dynamo(),
        "finders of modules": [  # ours: libraries add theirs where they are imported first
            finder
            for finder in sys.meta_path
            if type(finder).__module__.startswith("graphviz_torch.")
        ],
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "Tensor.backward": torch.Tensor.backward,
        "autograd.backward": torch.autograd.backward,
        "autograd.grad": torch.autograd.grad,
        "run_backward": torch.autograd.graph._engine_run_backward,
    }


@pytest.fixture(autouse=True)
def nothing_left_installed() -> Iterator[None]:
    """Fail a test after which a hook, a mode or a default differs from before."""
    before = _installed()
    yield
    assert _installed() == before


@pytest.fixture
def the_same_numbers() -> None:
    """Set the seed, so that each run of a test has the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture
def sim() -> Iterator[torch.device]:
    """A simulated accelerator."""
    with simulate_accelerator() as [device]:
        yield device


@pytest.fixture
def logged() -> Iterator[Callable[..., list[logging.LogRecord]]]:
    """A function that sets a logger's level, and returns a list that gets each logged record."""
    with ExitStack() as stack:

        def listen(name: str, level: int = logging.WARNING) -> list[logging.LogRecord]:
            logger, handler = logging.getLogger(name), BufferingHandler(1_000)
            stack.callback(logger.removeHandler, handler)
            logger.addHandler(handler)
            # A library, or an example that ran before, may have switched logs off.
            stack.callback(logger.setLevel, logger.level)
            stack.callback(setattr, logger, "disabled", logger.disabled)
            stack.callback(logging.disable, logging.root.manager.disable)
            logger.setLevel(level)
            logger.disabled = False
            logging.disable(logging.NOTSET)
            return handler.buffer

        yield listen
