"""Explain failures: advice on exceptions, and the calls that made a backward fail."""

from __future__ import annotations

import re

from ..graph import Cause, Failure
from .graph_reading import Reading
from .words import at

# Phrase in a message -> advice. Each phrase occurs in messages about one kind of mistake only.
ADVICE = {
    "does not require grad": "Look for detach(), .data, no_grad, item() or an autograd.grad "
    "without create_graph=True between the parameters and the loss.",
    "modified by an inplace operation": "Compute a new tensor (a = a + 1) instead of changing "
    "one that backward needs (a += 1).",
    "backward through the graph a second time": "Add the losses and call backward() once, run "
    "the forward again, or pass retain_graph=True to the first backward().",
    "leaf Variable that requires grad is being used in an in-place": "If the leaf should "
    "change, change it under torch.no_grad(); else compute a new tensor (a = a + 1).",
    "is a view and is being modified inplace": "Clone the whole tensor and change slices of the "
    "clone (h = h.clone(); h[:, :4] += 1), or compute new parts and join them with torch.cat().",
    "implicitly created only for scalar outputs": "Call backward() on one number, such as "
    "loss.mean() or loss.sum(), or pass gradient=.",
    "appears to not have been used in the graph": "Request gradients of tensors from which the "
    "output was computed, or pass allow_unused=True.",
    "elements of input should be between 0 and 1": "Put a sigmoid before binary_cross_entropy, or "
    "use binary_cross_entropy_with_logits.",
    "Inference tensors cannot": "Create the tensor under torch.no_grad() instead of "
    "inference_mode(), or use its clone().",
    "Can't call numpy() on Tensor that requires grad": "Call detach() before numpy().",
    "returned an invalid gradient": "Let backward return gradients with the shapes of forward's "
    "arguments.",
    "returned an incorrect number of gradients": "Let backward return a gradient, or None, for "
    "each argument of forward.",
    "0D or 1D target tensor expected": "Class indices have the shape [N]: call squeeze(1) on "
    "the target, or argmax(1) if the target is one-hot.",
    "floating point type for target with class probabilities": "Pass class indices as target "
    "(target.argmax(1)), or probabilities (target.float()).",
    "expected target dtype to be Long": "Class indices are integers: call long() on the target.",
    "expected scalar type Long but found": "Class indices are integers: call long() on the target.",
    "can't be cast to the desired output type Long": "This loss takes a floating-point target: "
    "call float() on the target.",
    " is out of bounds.": "Classes count from 0, and the model needs one output for each class: "
    "compare target.max() with the number of outputs.",
    "index out of range in self": "An index must be smaller than num_embeddings: check the max() "
    "of the indices.",
    "shapes cannot be multiplied": "The last dimension of the input must have the size "
    "in_features of the layer: print both shapes.",
    "empty parameter list": "Pass a non-empty list of parameters. A plain list of layers "
    "registers no parameters, and a generator that was consumed before is empty.",
    "Expected more than 1 value per channel": "A batch of one sample has no variance: pass "
    "drop_last=True to the DataLoader, call eval() before prediction, or use nn.GroupNorm, "
    "which needs no batch.",
    "unscale_() has already been called": "Call unscale_() once per step, after the last "
    "backward. scaler.step() unscales the gradients if unscale_() was not called; "
    "scaler.update() ends the step.",
    "unscale_() is being called after step()": "Call unscale_() before scaler.step(), and "
    "scaler.update() after it to end the step.",
    "The specified number of total steps is": "total_steps counts the calls of step(): with one "
    "call for each batch, it is epochs * len(loader).",
    "channels, but got": "in_channels must be the size of dimension 1 of the input [N, C, H, "
    "W]: 1 for a gray image, 3 for a color image. Image libraries put the channels last; "
    "permute them to dimension 1.",
    "D (unbatched) or ": "A convolution takes [N, C, ...], or [C, ...] without a batch: add a "
    "missing dimension with unsqueeze(), or flatten the extra dimensions.",
    "Kernel size can't be greater": "The image has become smaller than the kernel: use a larger "
    "image, fewer strides and poolings before this layer, or padding.",
    "Output size is too small": "The image has become smaller than the pooling window: use a "
    "larger image, or fewer strides and poolings before this layer.",
    "to match target batch_size": "Input and target need the same first size: look for a view "
    "or reshape that changes the batch dimension, and for a smaller last batch.",
    "Expected target size [": "Classes must be in dimension 1. If the input is [N, length, "
    "classes] and the target [N, length], call transpose(1, 2) on the input, or flatten(0, 1) "
    "on both.",
    "must have the same dtype, but got": "Input and weights need one dtype: convert the input with "
    "x.to(weight.dtype), or run the layer under torch.autocast. NumPy arrays are float64 by "
    "default.",
    "to have the same dtype, but got": "Input and weights need one dtype: convert the input with "
    "x.to(weight.dtype), or run the layer under torch.autocast.",
    "Input type (": "Convert the input to the dtype of the weights with x.to(weight.dtype), and "
    "move both to one device. NumPy arrays are float64 by default.",
    "view size is not compatible": "Call reshape() instead of view(): reshape() copies the "
    "elements if it must. After transpose or permute, elements are in a different order in memory.",
    "is invalid for input of size": "The product of a view's sizes must be the number of "
    "elements: pass -1 for one size, and check that the batch has the size that the view "
    "assumes.",
    "Sizes of tensors must match except in dimension": "cat joins tensors along dim and needs "
    "equal sizes in all other dimensions: check dim, or crop or pad one of the tensors.",
    "stack expects each tensor to be equal size": "Pad the tensors to one size, for example "
    "with pad_sequence in the collate_fn of the DataLoader.",
    "must be the same as input size": "Input and target need one shape: call squeeze(-1) on the "
    "input, or unsqueeze(-1) and float() on the target.",
    "must match the size of tensor b": "Two sizes broadcast if they are equal or one of them is "
    "1, compared from the last dimension: look for a missing unsqueeze, keepdim=True or "
    "transpose.",
    "out of bounds for dimension": "Valid indices are 0 to size - 1, and -1 to -size from the end.",
    "Given normalized_shape=": "normalized_shape is the size of the last dimensions of the input.",
    "running_mean should contain": "num_features of a batch norm is dimension 1 of its input.",
    "expected 4D input (got": "BatchNorm2d takes [N, C, H, W]; use BatchNorm1d for [N, C].",
    "input.size(-1) must be equal to input_size": "input_size of a recurrent layer is the last "
    "dimension of its input, whether or not it is batch_first.",
    "must be Tensor, not tuple": "Recurrent layers and attention return a tuple: unpack the "
    "tuple, as in output, state = lstm(x).",
    "must be Tensor, not NoneType": "The argument is None: look for a function without a return "
    "statement.",
    "was expecting embedding dimension": "embed_dim of an attention layer must be the size of the "
    "query's last dimension.",
    "embed_dim must be divisible by num_heads": "Each head has embed_dim / num_heads features: "
    "choose num_heads so that it divides embed_dim.",
    "can require gradients": "Convert the tensor to a floating-point dtype first: call float().",
    "could not infer output dtype": "A mean of integers is not an integer: call float() first.",
    "Boolean value of Tensor with more than one value": "A condition takes one value: call "
    "any() or all(), or use torch.where. A loss class must be constructed first: "
    "CrossEntropyLoss()(x, y).",
    "elements cannot be converted to Scalar": "item() takes one number: call mean(), sum() or "
    "tolist().",
    "only one element tensors can be converted": "float() and int() take one number: call mean(), "
    "sum() or tolist().",
    "Dimension out of range": "Dimensions are numbered from 0 to ndim - 1: the tensor has fewer "
    "dimensions than the call expects.",
    "The shape of the mask": "A mask must have the shape of the tensor's first dimensions, or "
    "of the whole tensor: write x[:, mask] to select along dimension 1.",
    "torch.nn.Parameter or None expected": "Assign nn.Parameter(tensor), or write into the "
    "existing parameter under torch.no_grad(): weight.copy_(tensor).",
    "before Module.__init__() call": "Call super().__init__() first in the module's __init__.",
    'missing the required "forward" function': "Define forward in the class: its name may be "
    "misspelt, or its indentation may put it outside the class. Call the items of a ModuleList "
    "one by one.",
    "in loading state_dict for": "The file was saved from another model: compare the names and "
    "sizes in the message. A prefix such as module. comes from a wrapper such as DataParallel: "
    "save the wrapper's .module.",
    "doesn't match the size of optimizer's group": "Before load_state_dict, construct the "
    "optimizer with the same parameters in the same groups and order as the saved optimizer.",
    "No inf checks were recorded": "scaler.step found no gradient: call "
    "scaler.scale(loss).backward() first, with a loss that depends on the optimizer's "
    "parameters.",
    "is not positive-definite": "Add a small number to the diagonal, use float64, or check that "
    "the matrix is symmetric.",
    "the input matrix contained non-finite values": "The matrix has NaN or Inf: check the "
    "operations that computed it.",
    "stride in the given numpy array is negative": "Copy the array first: "
    "torch.from_numpy(array.copy()).",
    "can't convert np.ndarray of type numpy.object_": "The rows of the array have different "
    "lengths or types: pad the rows to one size, or convert the columns one by one.",
    "Length of all samples has to be greater than 0": "Leave empty sequences out of the batch.",
    "must be sorted in decreasing order": "Pass enforce_sorted=False.",
    "to have one of the following scalar types: Long, Int": "Indices are integers: call long() on "
    "them.",
    "Class values must be smaller than num_classes": "Classes count from 0: num_classes must be "
    "at least the largest class + 1.",
    "one_hot is only applicable to index tensor": "Classes are integers: call long() on them.",
    "Expected dtype int32/int64 for index": "Indices are integers: call long() on them.",
    "appear in more than one parameter group": "Give each parameter to one group only: remove "
    "the parameters of the first group from the others.",
    "should be an iterable of Tensors or dicts": "Pass a list: [tensor], or model.parameters().",
    "support the deepcopy protocol": "A result with a grad_fn cannot be deep-copied: copy "
    "x.detach(), and look for results that a module keeps as attributes.",
    "is not a Module subclass": "Unpack the list: nn.Sequential(*layers).",
    "Got unsupported ScalarType BFloat16": "NumPy has no bfloat16: call float() first.",
    "Expected input_lengths to have value at most": "An input length is at most the number of "
    "time steps, the size of dimension 0 of log_probs: divide the lengths by the model's "
    "strides.",
    "metadata than during the forward pass": "The checkpointed code did something "
    "different when it ran again: look for a counter, a cache or a mode in it.",
    "A different number of tensors was saved": "The checkpointed code did something "
    "different when it ran again: look for a counter, a cache or a mode in it.",
    "Expected to have finished reduction in the prior iteration": "A parameter was not used by "
    "the loss on this rank: use it, or pass find_unused_parameters=True.",
    "Attempting to unscale FP16 gradients": "Keep the weights in float32 and run the forward "
    "under torch.autocast: GradScaler expects float32 gradients.",
    **dict.fromkeys(
        ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver"),
        "This machine has no CUDA device for PyTorch: choose one with "
        "torch.cuda.is_available(), or run the program on a simulated device: graphviz-torch "
        "run --simulate 1 SCRIPT.",
    ),
    "out of memory": "Use a smaller batch, bfloat16 autocast, or torch.utils.checkpoint for the "
    "modules that save the most memory.",
}


_AUGMENTED_OPERATORS = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/", "pow_": "**"}
# `h += x`, but not `h[0] += x`
_AUGMENTED = re.compile(r"([A-Za-z_][\w.]*)\s*(\*\*|[-+*/])=(?!=)")
_PARTIAL_WRITES = (
    "setitem",
    "index_put_",
    "index_fill_",
    "index_copy_",
    "masked_fill_",
    "scatter_",
)
_MAX_SOURCE_LINE = 60  # maximal length of a source line that a message quotes


def is_backward(cause: Cause) -> bool:
    """Return True for a call of backward, or of autograd.grad."""
    return cause.operation in ("backward", "grad")


def backward_text(other: Cause) -> str:
    """Return a call and its line, such as "backward at train.py:9"."""
    name = "autograd.grad" if other.operation == "grad" else "backward"
    return f"{name}{at(other.where)}" if other.where else f"an earlier {name}"


def change_text(reading: Reading, change: Cause) -> str:
    """Return a change in place and its line, such as "add_ in block.relu at train.py:9"."""
    if change.operation == "step":
        return f"the optimizer's step{at(change.where)}"
    text = f" ({change.text})" if _is_visible(change) else ""
    return f"{change.operation}{_module_text(reading, change)}{at(change.where)}{text}"


def _module_text(reading: Reading, change: Cause) -> str:
    """Return " in block.relu", or "" if the module is not known."""
    modules = (reading.graph.nodes[i].module for i in change.nodes)
    return next((f" in {module}" for module in modules if module), "")


def _is_visible(change: Cause) -> bool:
    """Return True if the source line shows the in-place change, and is short enough to quote."""
    name, text = change.operation.partition("(")[0].rstrip("_"), change.text
    seen = name in text or re.search(r"(\]|\*\*|[-+*/%&|^])\s*=[^=]", text) is not None
    return bool(text) and seen and len(text) <= _MAX_SOURCE_LINE


def advice_on_change(reading: Reading, failure: Failure, changes: list[Cause], user: str) -> str:
    """Return the code to write instead of the first in-place change, as advice.

    Args:
        reading: the graph.
        failure: the exception of backward.
        changes: the in-place changes of the saved tensor, in order.
        user: the operation that saved the tensor, as text.
    """
    if not changes:
        return (
            f"Look for code that changes the tensor after {user} saved it: compiled code, a "
            "thread, C++."
        )
    first = changes[0]
    if first.operation == "step":
        return (
            "Call backward before the step, or run the forward again after it. If a tensor is "
            "carried from one step to the next, such as a hidden state, detach() it in between."
        )
    if failure.modified is not None and failure.modified.node is not None:
        return "Call backward before the change, or run the forward again after it."
    line, written = at(first.where), _AUGMENTED.match(first.text)
    if "max_norm=" in first.operation:
        return (
            "Pass a clone() of the weight to the embedding, or normalize the weight before "
            "the forward."
        )
    if "inplace=" in first.operation:
        return f"Use inplace=False{_module_text(reading, first) or line}."
    if "out=" in first.operation:
        return f"Remove the argument out={line}."
    if first.of_view:  # a new tensor would not change the base of the view
        if written:
            return f"Call clone() on the base tensor before the view {written[1]} is created."
        return "Call clone() on the base tensor before the view is created."
    if first.operation in _PARTIAL_WRITES:
        return f"Change a copy{line}, made with clone(), or use torch.where."
    if written and _AUGMENTED_OPERATORS.get(first.operation) == written[2]:
        name, sign = written[1], written[2]
        return (
            f"Compute a new tensor{line}: {name} = {name} {sign} ... instead of {name} {sign}= ...."
        )
    return (
        f"Compute a new tensor{line} instead of changing this one, or give {user} a clone() of it."
    )


def origin_text(reading: Reading, other: Cause) -> str:
    """Return the phrase "NODE uses TENSOR".

    Another backward ran the node that computed TENSOR, but not NODE.
    """
    nodes = reading.graph.nodes
    old, new = (nodes[i] for i in other.nodes[:2])
    direct = any(edge.source == old.id for edge in reading.inputs[new.id])
    name = other.label if direct and other.label else reading.call(old.id)
    return (
        f"{reading.call(new.id)}{at(new.where)} {'uses' if direct else 'comes from'} "
        f"{name}{at(old.where)}"
    )


def advice_on_carried(other: Cause) -> str:
    """Return advice on a tensor that connects a new graph to one that backward already ran."""
    name = other.label
    detached = f"{name} = {name}.detach()" if name.isidentifier() else "detach()"
    if (other.in_loop or not other.where) and other.operation != "grad":
        return (
            f"Detach {name or 'the tensor'} between the steps, with {detached}. If a list keeps "
            "it, clear the list after each step. If the gradient of each step should reach the "
            "source of this tensor, compute the tensor again in each step."
        )
    if other.operation == "grad":
        return (
            f"Pass create_graph=True to autograd.grad{at(other.where)} if its result is "
            "differentiated again; otherwise pass retain_graph=True, or run the forward again."
        )
    if other.stepped:
        return (
            f"Detach {name or 'the tensor'} if only one of the two losses should train its "
            "source. Otherwise run its forward again after the step."
        )
    return "Add the losses and call backward() once, or pass retain_graph=True to the first."


def advice_on_same_graph(other: Cause) -> str:
    """Return advice on a graph through which backward ran again, after a complete first run."""
    if other.in_loop:
        return "Run the forward again before each backward, in the loop or the closure."
    if other.operation == "grad":
        return f"Pass retain_graph=True to autograd.grad{at(other.where)}."
    return "Call backward() once, or pass retain_graph=True to the first."
