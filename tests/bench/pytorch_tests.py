"""Run the tests of one of PyTorch's test files, bare or recorded, in a process of its own.

    python tests/bench/pytorch_tests.py FOLDER FILE REPORT [--ids PATH] [--twice] [--recorded]
        [--trace] [--limit S]

pytorch_suite.py starts this script and reads REPORT, which has two lines of JSON for each test: the
test's id when it begins, and its result with the changes that it leaves behind. A test that takes
more seconds of processor time than the limit, or ten times as many of wall-clock time, ends the
process; the stack of each thread is then in REPORT.log. Without `--ids`, no test runs, and REPORT
lists the ids. With `--twice`, each test runs twice and the changes of the second run count: a
reused buffer, or a cache that the first call fills, is then no change.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.nn.modules import module as nn_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import graphviz_torch
from graphviz_torch import record, trace

OURS = os.path.dirname(graphviz_torch.__file__)
OWNERS = (
    torch,
    torch.autograd,
    torch.autograd.graph,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.functional,
    torch.optim.Optimizer,
    torch.autograd.Function,
    sys.modules["torch.optim.optimizer"],
)
CACHED = {  # classes of objects that are cached as long as their owner lives
    "_Table",  # owner: a code object
    "Group",  # owner: a process group
    "_Members",  # owner: a class of nodes that PyTorch defines
    # Owner: the code of a compiled region in dynamo. These are plain values.
    *("Region", "Inside", "InsideCut", "InsideEvent", "Origin", "Edge", "TensorMeta"),
    *("OperationTrace", "Pairs", "_Noted", "_Nameless"),
}
SINCE_2_6 = {  # names that 2.6.0's tests import and that newer versions lack
    "torch.testing._internal.common_cuda": {"tf32_is_not_fp32": lambda: False},
    "torch.testing._internal.common_mkldnn": {"bf32_on_and_off": lambda *_: lambda test: test},
}


def modes() -> dict[str, Any]:
    """Return modes, hooks, dispatch keys, replaced names and the interpreter's settings."""
    found: dict[str, Any] = {
        "function modes": list(map(id, _get_current_function_mode_stack())),
        "dispatch modes": list(map(id, _get_current_dispatch_mode_stack())),
        "included keys": str(torch._C._dispatch_tls_local_include_set()),
        "excluded keys": str(torch._C._dispatch_tls_local_exclude_set()),
        "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "transforms": torch._C._functorch.maybe_current_level(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "profiler": torch.autograd._profiler_enabled(),
        "random state": torch.default_generator.initial_seed(),
        "gc": (gc.get_threshold(), len(gc.callbacks)),
        "trace functions": (sys.gettrace(), sys.getprofile()),
        "switch interval": sys.getswitchinterval(),
        "Ctrl-C": signal.getsignal(signal.SIGINT),
        "warning filters": len(warnings.filters),
    }
    for name, value in vars(nn_module).items():
        if name.startswith("_global_") and name.endswith("_hooks"):
            found[name] = len(value)
    for owner in OWNERS:
        for name, value in vars(owner).items():
            if callable(value) and not isinstance(value, type):
                found[f"{owner.__name__}.{name}"] = id(value)
    return found


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name in before if name in after and before[name] != after[name]]


def living() -> Counter[str]:
    """Return the number of live tensors, and of live objects of each of the package's classes.

    A gradient that only C++ refers to has no Python object before it is read, so each is read.
    """
    with torch._C.DisableTorchFunctionSubclass(), contextlib.suppress(RuntimeError):
        gradients = [
            thing.grad
            for thing in gc.get_objects()
            if isinstance(thing, torch.Tensor) and thing.is_leaf
        ]
        del gradients
    found: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, torch.Tensor):
            found["tensor"] += 1
        elif kind.__name__ in CACHED:
            continue
        elif str(kind.__module__).startswith("graphviz_torch"):
            found[kind.__qualname__] += 1
    return found


class Ends(unittest.TestResult):
    """The result of the one test that ran: its outcome or exception, and the exception's origin."""

    def __init__(self) -> None:
        super().__init__()
        self.end, self.message, self.where = "ok", "", ""

    def _raised(self, error: Any) -> None:
        kind, value, _ = error
        if self.end != "ok":
            return  # the first error is the cause
        self.end = kind.__name__
        self.message = next(filter(None, map(str.strip, str(value).splitlines())), "")[:300]
        while value is not None and not self.where:
            for frame in traceback.extract_tb(value.__traceback__):
                if frame.filename.startswith(OURS):
                    self.where = f"{Path(frame.filename).relative_to(OURS)} {frame.name}"
            value = value.__cause__ or value.__context__

    def addError(self, test: Any, error: Any) -> None:
        self._raised(error)

    def addFailure(self, test: Any, error: Any) -> None:
        self._raised(error)

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        if error is not None:
            self._raised(error)

    def addSkip(self, test: Any, reason: str) -> None:
        self.end = "skipped"

    def addExpectedFailure(self, test: Any, error: Any) -> None:
        self.end = "expected failure"

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.end = "unexpected success"


def recorded(method: Callable[[], Any]) -> Any:
    """Run the test's body inside `record()`, then read its graph, even if the body raised."""
    recording = record()
    try:
        with recording:
            return method()
    finally:
        try:
            _ = recording.graph
        except ValueError as error:
            if not str(error).startswith("nothing was recorded"):
                raise


def trace_before_backward() -> None:
    """From now on, call `trace` on the outputs before each backward of this process."""
    run = torch.autograd.graph._engine_run_backward

    def traced(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
        with contextlib.suppress(ValueError):  # raised without an autograd graph, as by backward
            trace(tensors, names={})
        return run(outputs, *args, **kwargs)

    torch.autograd.graph._engine_run_backward = traced  # type: ignore[assignment]
    torch.autograd._engine_run_backward = traced  # type: ignore[attr-defined]


def on_a_fake_group() -> None:
    """Run tests of several processes or threads in this one, as rank 0 of a fake group."""
    distributed = importlib.import_module("torch.distributed")
    cases = importlib.import_module("torch.testing._internal.common_distributed")
    dtensor = importlib.import_module("torch.testing._internal.distributed._tensor.common_dtensor")
    group = importlib.import_module("torch.testing._internal.distributed.fake_pg")

    def end() -> None:
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def begin(case: Any) -> None:
        end()
        case.rank = 0
        size = case.world_size
        distributed.init_process_group("fake", store=group.FakeStore(), rank=0, world_size=size)
        case.addCleanup(end)
        getattr(case, "perThreadSetUp", lambda: None)()

    for kind in (cases.MultiProcessTestCase, cases.MultiThreadedTestCase):
        kind.join_or_run = lambda case, method: method
        kind._spawn_processes = kind._spawn_threads = begin
    dtensor.DTensorTestBase.init_pg = dtensor.DTensorTestBase.destroy_pg = lambda *_, **__: None


def cases(folder: Path, file: str) -> Iterator[unittest.TestCase]:
    """Yield the tests that a file defines, without those that it imports."""
    path = folder / file
    sys.argv = [str(path)]
    sys.path[:1] = [str(path.parent), str(folder)]
    for module, names in SINCE_2_6.items():
        vars(importlib.import_module(module)).update(names)
    common_nn = importlib.import_module("torch.testing._internal.common_nn")
    if not hasattr(common_nn, "new_module_tests"):
        common_nn.new_module_tests = common_nn.get_new_module_tests()  # type: ignore[attr-defined]
    if "distributed" in path.parts:
        on_a_fake_group()
    module = importlib.import_module(path.stem)
    suites: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    while suites:
        suite = suites.pop()
        if isinstance(suite, unittest.TestSuite):
            suites += reversed(list(suite))
        elif type(suite).__module__ == module.__name__:
            yield suite


def run(case: unittest.TestCase) -> dict[str, Any]:
    """Run one test; return its result, its seconds, and the changes that it left behind."""
    ends = Ends()
    gc.collect()
    gc.freeze()  # ignores existing objects, of which there may be very many
    gc.disable()
    case = type(case)(case._testMethodName)  # a new object: the old one keeps attributes alive
    before, alive = modes(), living()
    started = time.process_time()
    case.run(ends)
    seconds = time.process_time() - started
    name = case.id()
    del case
    waiting = living()["tensor"]
    gc.enable()
    gc.collect()
    after = living()
    return {
        "id": name,
        "end": ends.end,
        "message": ends.message,
        "where": ends.where,
        "seconds": round(seconds, 3),
        "changed": differing(before, modes()) + in_body,
        "alive": {name: more for name, more in (after - alive).items() if more},
        "collected": max(0, waiting - after["tensor"]),
    }


in_body: list[str] = []  # changes by the last test's body, which its tearDown may undo


def around_bodies(body: Callable[[Callable[[], Any]], Any]) -> None:
    """Run every test's body inside `body`; setUp and tearDown stay outside."""

    def call(case: unittest.TestCase, method: Callable[[], Any]) -> None:
        before = modes()
        try:
            body(method)
        finally:
            in_body[:] = [f"{name} in the body" for name in differing(before, modes())]

    unittest.TestCase._callTestMethod = call  # type: ignore[attr-defined]


def limit(seconds: float, log: TextIO) -> None:
    """End the process after this many seconds of processor time, or ten times as many in all."""
    until = int(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
    faulthandler.dump_traceback_later(10 * seconds, exit=True, file=log)


def write(report: TextIO, line: Any) -> None:
    report.write(json.dumps(line) + "\n")
    report.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("file")
    parser.add_argument("report", type=Path)
    parser.add_argument("--ids", type=Path)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--recorded", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--limit", type=float, default=60)
    options = parser.parse_args()
    if options.trace:
        trace_before_backward()
    around_bodies(recorded if options.recorded else lambda method: method())
    found = {case.id(): case for case in cases(options.folder, options.file)}
    with options.report.open("a") as report:
        if options.ids is None:
            for name in found:
                write(report, name)
            os._exit(0)
        if options.recorded:  # the first recording makes permanent registrations
            x = torch.ones(2, requires_grad=True)
            recorded(lambda: x.sum().backward())
        gc.collect()
        gc.freeze()
        log = open(f"{options.report}.log", "w")  # noqa: SIM115 (faulthandler keeps it)
        faulthandler.register(signal.SIGXCPU, file=log, chain=True)
        for name in options.ids.read_text().split("\n"):
            write(report, name)
            in_body.clear()
            limit(options.limit, log)
            result = run(found[name])
            if options.twice:
                limit(options.limit, log)
                end = {key: result[key] for key in ("end", "message", "where")}
                result = run(found[name]) | end
            faulthandler.cancel_dump_traceback_later()
            write(report, result)
    sys.stdout.flush()
    os._exit(0)  # threads that a test left do not matter


if __name__ == "__main__":
    main()
