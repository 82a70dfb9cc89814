"""Send a step's graph and gradient norms to TensorBoard, wandb, MLflow or another logger."""

from __future__ import annotations

from typing import Any

from .. import Graph, to_html
from ..graph.tensors import total_norm
from ..tensorboard import add_autograd_graph

_NORM = "gradient_norm"


def send(logger: Any, graph: Graph, step: int) -> None:
    """Log the graph of a step and its gradient norms.

    Args:
        logger: a TensorBoard `SummaryWriter`, a wandb run, the module `mlflow`, or a Lightning
            logger with `log_metrics(metrics, step)`, which gets only the norms.
        graph: the graph of the step.
        step: the number of the step.

    Raises:
        TypeError: if the logger is none of these.
    """
    norms = {f"{_NORM}/{path}": norm for path, norm in gradient_norms(graph).items()}
    if hasattr(logger, "add_scalar"):
        for name, norm in norms.items():
            logger.add_scalar(name, norm, step)
        if hasattr(logger, "log_dir"):
            add_autograd_graph(graph, logger, step=step)
    elif hasattr(logger, "log_metric") and hasattr(logger, "log_text"):  # mlflow
        for name, norm in norms.items():
            logger.log_metric(name, norm, step=step)
        logger.log_text(to_html(graph), f"autograd_graph/step{step:05}.html")
    elif type(logger).__module__.partition(".")[0] == "wandb":
        import wandb

        page = wandb.Html(to_html(graph), inject=False)
        logger.log({**norms, "autograd_graph": page, "graphviz_torch/step": step})
    elif hasattr(logger, "log_metrics"):
        logger.log_metrics(norms, step=step)
    else:
        raise TypeError(
            f"a {type(logger).__name__} is not a supported logger: pass a TensorBoard "
            "SummaryWriter, a wandb run, the module mlflow, or an object with log_metrics."
        )


def gradient_norms(graph: Graph) -> dict[str, float]:
    """Return each module's gradient norm: the L2 norm over the module's own parameters.

    Keys are paths of modules. Norms are divided by the loss scale; they are NaN or Inf if a
    gradient contains NaN or Inf. If the graph was merged from the graphs of all ranks, the norm of
    a sharded parameter covers all shards.
    """
    norms: dict[str, list[float]] = {}
    for parameter in graph.parameters:
        if parameter.node is None:
            continue
        found = graph.nodes[parameter.node].grad_outputs
        whole = parameter.grad is not None and not parameter.grad.extent
        if (
            whole and graph.step.loss_scale is None
        ):  # with a loss scale, `.grad` may already be unscaled
            found = (parameter.grad,)
        for stats in found:
            if stats is not None:
                owner = parameter.name.rpartition(".")[0] or parameter.name
                norms.setdefault(owner, []).append(stats.whole_norm)
    scale = graph.step.loss_scale or 1.0
    return {owner: total_norm(some) / scale for owner, some in norms.items()}
