"""Write the visitor's program or model as a complete script. The page shows some of its lines."""

from __future__ import annotations

import ast
from copy import deepcopy
from dataclasses import dataclass

from .functions import FUNCTIONS
from .grammar import ParsedProgram, callee, input_lines


@dataclass(frozen=True)
class ScriptText:
    """The text of a script, the lines to show on the page, and the line that assigns each name."""

    text: str
    span: tuple[int, int]  # first and last line that the page shows, counted from 1
    lines: dict[str, int]  # name or statement -> number of its line

    @property
    def page_lines(self) -> tuple[tuple[int, str], ...]:
        """(number, text) of each line that the page shows, including the lines that run a model."""
        lines = self.text.splitlines()
        first, last = self.span
        body = lines[first - 1 : last]
        indent = min((len(line) - len(line.lstrip()) for line in body if line), default=0)
        numbered = [(number, line[indent:]) for number, line in enumerate(body, first)]
        after = [(n, lines[n - 1].strip()) for n in sorted(self.lines.values()) if n > last]
        return (*numbered, *after)

    def place(self, name: str) -> str:
        """Return the line that assigns a name, such as "script.py:7"; "" if no line assigns it."""
        return f"script.py:{self.lines[name]}" if name in self.lines else ""


def expression_script(
    program: ParsedProgram, inputs: str, device: str, seed: int, scalar: bool
) -> ScriptText:
    """Return the script of a program.

    Args:
        program: the program.
        inputs: the lines of the inputs.
        device: the device, as in `devices.use`.
        seed: random seed.
        scalar: whether the output has one element.
    """
    simulated = device.startswith("sim")
    names = ["draw_graph", "record", *["simulate_accelerator"] * simulated]
    made = input_lines(inputs)
    steps = [(name, f"{name} = {_input(value)}") for name, value in made]
    written = {"pi": "torch.pi", "e": "torch.e", **{name: name for name, _ in made}}
    for name, expression in program.lines:
        python = _PythonWriter(written).visit(deepcopy(expression))
        steps.append((name, f"{name} = {ast.unparse(python)}"))
        written[name] = name
    body = "\n".join(line for _, line in steps)
    lines = ["import torch"]
    if "F." in body:
        lines.append("import torch.nn.functional as F")
    lines += [f"from graphviz_torch import {', '.join(names)}", ""]
    if "torch.rand" in body:
        lines.append(f"torch.manual_seed({seed})")
    if not simulated and ".to(device)" in body:
        lines.append(f'device = torch.device("{"cuda:0" if device == "cuda" else device}")')
    with_ = "simulate_accelerator() as [device], " if simulated else ""
    lines.append(f"with {with_}record() as recording:")
    first = len(lines) + 1
    numbers = {}
    for name, line in steps:
        lines.append(f"    {line}")
        numbers[name] = len(lines)
    start = "" if scalar else f"torch.ones_like({program.output})"
    lines.append(f"    {program.output}.backward({start})")
    last = len(lines)
    lines += ["", *(f'print("{name}.grad =", {name}.grad)' for name, _ in made)]
    lines.append('draw_graph(recording.graph).render("graph", format="svg")')
    return ScriptText("\n".join(lines) + "\n", (first, last), numbers)


def model_script(code: str, device: str, seed: int) -> ScriptText:
    """Return the code of a gallery model, followed by the lines that run and record the model."""
    run = [
        "model, loss = build(devices)",
        "with record(model) as recording:",
        "    output = loss()",
        "    output.backward()",
    ]
    names = "draw_graph, find, record"
    if device.startswith("sim"):
        names += ", simulate_accelerator"
        run = [f"with simulate_accelerator({device[3:]}) as devices:", *("    " + r for r in run)]
    elif device == "cuda":
        count = "range(torch.cuda.device_count())"
        run.insert(0, f'devices = [torch.device("cuda", index) for index in {count}]')
    else:
        run.insert(0, f'devices = [torch.device("{device}")]')
    shown = code.rstrip().splitlines()
    lines = [
        *shown,
        "",
        "",
        'if __name__ == "__main__":',
        f"    from graphviz_torch import {names}",
        "",
        f"    torch.manual_seed({seed})",
        *("    " + line for line in run),
        "    for finding in find(recording.graph):",
        "        print(finding.message)",
        '    draw_graph(recording.graph).render("graph", format="svg")',
    ]
    run_lines = ("output = loss()", "output.backward()")
    numbers = {line.strip(): n for n, line in enumerate(lines, 1) if line.strip() in run_lines}
    return ScriptText("\n".join(lines) + "\n", (1, len(shown)), numbers)


def _input(value: ast.expr) -> str:
    if not isinstance(value, ast.Call):
        numbers = ast.unparse(_Floats().visit(_copy_as_list(value)))
        return f"torch.tensor({numbers}, requires_grad=True)"
    name, _ = callee(value)
    if name == "randint":
        low, high, *size = (ast.unparse(argument) for argument in value.args)
        return f"torch.randint({low}, {high}, [{', '.join(size)}])"
    dtype = "dtype=torch.float32, " * (name == "arange")
    arguments = ", ".join(ast.unparse(argument) for argument in value.args)
    return f"torch.{name}({arguments}, {dtype}requires_grad=True)"


def _copy_as_list(value: ast.expr) -> ast.expr:
    """Return a copy of the expression, in which a tuple is written as a list."""
    text = ast.unparse(ast.List(value.elts) if isinstance(value, ast.Tuple) else value)
    return ast.parse(text, mode="eval").body


class _Floats(ast.NodeTransformer):
    """A transformer from ints to floats, so that the tensor can require gradients."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Constant(float(node.value))  # type: ignore[arg-type]


class _PythonWriter(ast.NodeTransformer):
    """A transformer from the small language to Python, which adds namespaces and replaces names."""

    def __init__(self, written: dict[str, str]) -> None:
        self.written = written

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.written.get(node.id, node.id))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name, receiver = callee(node)
        if receiver is not None and name in ("to", "cpu"):
            return ast.Call(ast.Attribute(self.visit(receiver), name), node.args, [])
        function: ast.expr = ast.Name(f"{FUNCTIONS[name].home}.{name}")
        if receiver is not None:
            function = ast.Attribute(self.visit(receiver), name)
        words = [ast.keyword(word.arg, self.visit(word.value)) for word in node.keywords]
        return ast.Call(function, [self.visit(argument) for argument in node.args], words)
