"""What a visitor chose, as a script to copy: it runs alone; tables name its lines."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from app.expression.expression import Program, called, input_lines
from app.expression.functions import FUNCTIONS


@dataclass(frozen=True)
class Script:
    """A script, and the number of the line that makes each name."""

    text: str
    lines: dict[str, int]

    def place(self, name: str) -> str:
        """`"script.py:7"`, as recordings say it; "" for a name that the script does not make."""
        return f"script.py:{self.lines[name]}" if name in self.lines else ""


def expression_script(
    program: Program, inputs: str, device: str, seed: int, scalar: bool
) -> Script:
    """The script of a program; `scalar` tells whether its output has one element."""
    names = ["draw_graph", "record", *["simulate_accelerator"] * device.startswith("sim")]
    made = input_lines(inputs)
    steps = [(name, f"{name} = {_input(value)}") for name, value in made]
    written = {"pi": "torch.pi", "e": "torch.e", **{name: name for name, _ in made}}
    if device != "cpu":
        for name, _ in made:
            written[name] = f"{name}_there"
            steps.append((written[name], f"{written[name]} = {name}.to(device)"))
    for name, expression in program.lines:
        steps.append((name, f"{name} = {ast.unparse(_Written(written).visit(expression))}"))
        written[name] = name
    body = "\n".join(line for _, line in steps)
    lines = ["import torch"]
    if "F." in body:
        lines.append("import torch.nn.functional as F")
    lines += [f"from graphviz_torch import {', '.join(names)}", ""]
    if "torch.rand" in body:
        lines.append(f"torch.manual_seed({seed})")
    if device == "cpu":
        lines.append("with record() as recording:")
    elif device.startswith("sim"):
        lines.append("with simulate_accelerator() as [device], record() as recording:")
    else:
        lines.append(f'device = torch.device("{"cuda:0" if device == "cuda" else device}")')
        lines.append("with record() as recording:")
    numbers = {}
    for name, line in steps:
        lines.append(f"    {line}")
        numbers[name] = len(lines)
    start = "" if scalar else f"torch.ones_like({program.output})"
    lines += [f"    {program.output}.backward({start})", ""]
    lines += [f'print("{name}.grad =", {name}.grad)' for name, _ in made]
    lines.append('draw_graph(recording.graph).render("graph", format="svg")')
    return Script("\n".join(lines) + "\n", numbers)


def model_script(code: str, device: str, seed: int) -> str:
    """The file of a gallery's model, followed by what runs it."""
    run = [
        "model, loss = build(devices)",
        "with record(model) as recording:",
        "    loss().backward()",
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
    lines = [
        'if __name__ == "__main__":',
        f"    from graphviz_torch import {names}",
        "",
        f"    torch.manual_seed({seed})",
        *("    " + line for line in run),
        "    for finding in find(recording.graph):",
        "        print(finding.message)",
        '    draw_graph(recording.graph).render("graph", format="svg")',
    ]
    return code.rstrip() + "\n\n\n" + "\n".join(lines) + "\n"


def _input(value: ast.expr) -> str:
    if not isinstance(value, ast.Call):
        numbers = ast.unparse(ast.List(value.elts) if isinstance(value, ast.Tuple) else value)
        return f"torch.tensor({numbers}, dtype=torch.float32, requires_grad=True)"
    name, _ = called(value)
    if name == "randint":
        low, high, *size = (ast.unparse(argument) for argument in value.args)
        return f"torch.randint({low}, {high}, [{', '.join(size)}])"
    dtype = "dtype=torch.float32, " * (name == "arange")
    arguments = ", ".join(ast.unparse(argument) for argument in value.args)
    return f"torch.{name}({arguments}, {dtype}requires_grad=True)"


class _Written(ast.NodeTransformer):
    """A program's expression as Python has it: functions with their home, names as written."""

    def __init__(self, written: dict[str, str]) -> None:
        self.written = written

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.written.get(node.id, node.id))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name, receiver = called(node)
        function: ast.expr = ast.Name(f"{FUNCTIONS[name].home}.{name}")
        if receiver is not None:
            function = ast.Attribute(self.visit(receiver), name)
        words = [ast.keyword(word.arg, self.visit(word.value)) for word in node.keywords]
        return ast.Call(function, [self.visit(argument) for argument in node.args], words)
