"""Advice on exceptions that end a training step, by a part of their message."""

from __future__ import annotations

# Each key is in the messages of one kind of exception only.
ADVICE = {
    "does not require grad": "Look for detach(), .data, no_grad, item() or an autograd.grad "
    "without create_graph=True between the parameters and the loss.",
    "modified by an inplace operation": "Make a new tensor, a = a + 1, instead of changing one "
    "that backward needs, a += 1.",
    "backward through the graph a second time": "Add the losses and call backward() once, run the "
    "forward again, or pass retain_graph=True to the first.",
    "leaf Variable that requires grad is being used in an in-place": "Change it under "
    "torch.no_grad() if it should change; else make a new tensor, a = a + 1.",
    "is a view and is being modified inplace": "Change slices of a copy of the whole, such as "
    "h = h.clone() and h[:, :4] += 1, or make new parts and put them together with torch.cat().",
    "implicitly created only for scalar outputs": "Call backward() on one number, such as "
    "loss.mean() or loss.sum(), or pass gradient=.",
    "appears to not have been used in the graph": "Ask for gradients of tensors that the output "
    "was computed from, or pass allow_unused=True.",
    "elements of input should be between 0 and 1": "Put a sigmoid before binary_cross_entropy, or "
    "use binary_cross_entropy_with_logits.",
    "Inference tensors cannot": "Make it under torch.no_grad() in place of inference_mode(), or "
    "use a clone() of it.",
    "Can't call numpy() on Tensor that requires grad": "Call detach() before numpy().",
    "returned an invalid gradient": "Return gradients with the shapes of the arguments of forward.",
    "returned an incorrect number of gradients": "Return a gradient, or None, for each argument "
    "of forward.",
    "0D or 1D target tensor expected": "Class indices have the shape [N]: call squeeze(1) on the "
    "target, or argmax(1) where it is one-hot.",
    "floating point type for target with class probabilities": "Give it class indices, "
    "target.argmax(1), or probabilities, target.float().",
    "expected target dtype to be Long": "Class indices are integers: call long() on the target.",
    "expected scalar type Long but found": "Class indices are integers: call long() on the target.",
    "can't be cast to the desired output type Long": "This loss compares numbers: call float() on "
    "the target.",
    " is out of bounds.": "Classes count from 0, and the model needs an output for each: look at "
    "target.max().",
    "index out of range in self": "An index is as large as the embedding or larger: look at its "
    "max().",
    "shapes cannot be multiplied": "Look at the shapes: the last size of the input must be the "
    "layer's in_features.",
    "empty parameter list": "Pass the parameters of a model that has some: a plain list of layers "
    "registers none, and a generator that was used before is empty.",
    "Expected more than 1 value per channel": "One row has no variance: pass drop_last=True to "
    "the DataLoader, call eval() before you predict, or use nn.GroupNorm, which needs no batch.",
    "unscale_() has already been called": "Call unscale_() once, after the last backward of a "
    "step; without it scaler.step() unscales by itself. scaler.update() ends the step.",
    "unscale_() is being called after step()": "Call unscale_() before step(), and update() after "
    "it: that ends the step.",
    "The specified number of total steps is": "total_steps counts the calls of step(): with one "
    "for each batch it is epochs * len(loader).",
    "channels, but got": "The first argument of a convolution, in_channels, is dimension 1 of its "
    "input [N, C, H, W]: a grey image has 1, a colour image 3; image libraries put it last.",
    "D (unbatched) or ": "A convolution takes [N, C, ...] with one more dimension than its kernel "
    "has, or two: call unsqueeze(0) or flatten what is too much.",
    "Kernel size can't be greater": "The image has become smaller than the kernel: take a larger "
    "one, fewer strides and poolings before, or padding.",
    "Output size is too small": "The image has become smaller than the window: take a larger one, "
    "or fewer strides and poolings before.",
    "to match target batch_size": "Input and target need the same first size: look for a view or "
    "reshape that moves the batch into another dimension, and for a last batch that is smaller.",
    "Expected target size [": "Classes stand in dimension 1: of [N, length, classes] and [N, "
    "length] call transpose(1, 2) on the input, or flatten(0, 1) on both.",
    "must have the same dtype, but got": "Give both one dtype: the input what the weights have, "
    "x.to(weight.dtype), or run it under torch.autocast. NumPy makes float64.",
    "to have the same dtype, but got": "Give both one dtype: the input what the weights have, "
    "x.to(weight.dtype), or run it under torch.autocast.",
    "Input type (": "Give the input the dtype of the weights, x.to(weight.dtype), and move both "
    "to one device. NumPy makes float64.",
    "view size is not compatible": "Call reshape(...) in place of view(...), which copies where "
    "it must. After transpose or permute the elements are in another order.",
    "is invalid for input of size": "The sizes of a view multiply to the number of elements: "
    "leave one to PyTorch with -1, and look whether the batch is as large as it says.",
    "Sizes of tensors must match except in dimension": "cat joins along dim and needs all other "
    "sizes alike: look at dim, or crop or pad one of them.",
    "stack expects each tensor to be equal size": "Pad them to one size, as pad_sequence does, or "
    "give the DataLoader a collate_fn that does.",
    "must be the same as input size": "Give both one shape: call squeeze(-1) on the input or "
    "unsqueeze(-1) and float() on the target.",
    "must match the size of tensor b": "Sizes broadcast where they are alike or 1, counted from "
    "the last dimension: look for a missing unsqueeze, keepdim=True or transpose.",
    "out of bounds for dimension": "Indices count from 0 to size - 1, and from the end from -1.",
    "Given normalized_shape=": "normalized_shape is the size of the last dimensions of the input.",
    "running_mean should contain": "num_features of a batch norm is dimension 1 of its input.",
    "expected 4D input (got": "BatchNorm2d takes [N, C, H, W]; for [N, C] there is BatchNorm1d.",
    "input.size(-1) must be equal to input_size": "input_size of a recurrent layer is the last "
    "dimension of its input, whether or not it is batch_first.",
    "must be Tensor, not tuple": "A recurrent layer, or attention, returns a tuple: take what you "
    "need from it, as in output, state = lstm(x).",
    "must be Tensor, not NoneType": "A function before it returned None: look for a missing "
    "return.",
    "was expecting embedding dimension": "embed_dim of an attention is the last dimension of its "
    "query.",
    "embed_dim must be divisible by num_heads": "Each head has embed_dim / num_heads: take a "
    "number of heads that divides it.",
    "can require gradients": "Make it a floating point tensor first: float().",
    "could not infer output dtype": "A mean of integers is not an integer: call float() first.",
    "Boolean value of Tensor with more than one value": "A condition takes one value: call any() "
    "or all(), or use torch.where. Of a loss class make an object first: CrossEntropyLoss()(x, "
    "y).",
    "elements cannot be converted to Scalar": "item() takes one number: call mean(), sum() or "
    "tolist().",
    "only one element tensors can be converted": "float() and int() take one number: call mean(), "
    "sum() or tolist().",
    "Dimension out of range": "A dimension counts from 0 to the number of dimensions - 1: the "
    "tensor has fewer than the call expects.",
    "The shape of the mask": "A mask has the shape of what it selects from, or of its first "
    "dimensions: write x[:, mask] for the second.",
    "torch.nn.Parameter or None expected": "Wrap it, nn.Parameter(tensor), or write into the one "
    "that is there under torch.no_grad(): weight.copy_(tensor).",
    "before Module.__init__() call": "Call super().__init__() first in the module's __init__.",
    'missing the required "forward" function': "Define forward in the class; it may be misspelt "
    "or stand outside the class. A ModuleList is called item by item.",
    "in loading state_dict for": "The file is of another model: compare the names and sizes that "
    "the message lists. A prefix such as module. comes from a wrapper; save its module.",
    "doesn't match the size of optimizer's group": "Make the optimizer with the parameters that "
    "the saved one had, in the same groups and order, before load_state_dict.",
    "No inf checks were recorded": "scaler.step found no gradient: call "
    "scaler.scale(loss).backward() first, with a loss that the optimizer's parameters made.",
    "is not positive-definite": "Add a small number to its diagonal, take float64, or look "
    "whether the matrix is symmetric.",
    "the input matrix contained non-finite values": "The matrix has NaN or Inf: look at what made "
    "it.",
    "stride in the given numpy array is negative": "Copy it first: torch.from_numpy(array.copy()).",
    "can't convert np.ndarray of type numpy.object_": "Its rows have several lengths or types: "
    "pad them to one size, or convert its columns one by one.",
    "Length of all samples has to be greater than 0": "Leave empty sequences out of the batch.",
    "must be sorted in decreasing order": "Pass enforce_sorted=False.",
    "to have one of the following scalar types: Long, Int": "Indices are integers: call long() on "
    "them.",
    "Class values must be smaller than num_classes": "Classes count from 0: num_classes is the "
    "largest one plus 1.",
    "one_hot is only applicable to index tensor": "Classes are integers: call long() on them.",
    "Expected dtype int32/int64 for index": "Indices are integers: call long() on them.",
    "appear in more than one parameter group": "Give each parameter to one group: leave out of "
    "the others what stands in the first.",
    "should be an iterable of Tensors or dicts": "Pass a list: [tensor], or model.parameters().",
    "support the deepcopy protocol": "A result cannot be copied with its history: copy "
    "x.detach(), and look for results that a module keeps as attributes.",
    "is not a Module subclass": "Unpack the list: nn.Sequential(*layers).",
    "Got unsupported ScalarType BFloat16": "NumPy has no bfloat16: call float() first.",
    "Expected input_lengths to have value at most": "An input length is at most the number of "
    "time steps, dimension 0 of log_probs: divide it as the model's strides do.",
    "metadata than during the forward pass": "The block did something else when it ran again: "
    "look for a counter, a cache, or a mode in what is checkpointed.",
    "A different number of tensors was saved": "The block did something else when it ran again: "
    "look for a counter, a cache, or a mode in what is checkpointed.",
    "Expected to have finished reduction in the prior iteration": "A parameter had no part in the "
    "loss on this rank: use it, or pass find_unused_parameters=True.",
    "Attempting to unscale FP16 gradients": "Keep the weights in float32 and run the forward "
    "under torch.autocast: GradScaler is for that.",
    **dict.fromkeys(
        ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver"),
        "This machine has no CUDA device for PyTorch: choose one with torch.cuda.is_available(), "
        "or see the program run on simulated ones: graphviz-torch run --simulate 1 SCRIPT.",
    ),
    "out of memory": "Take a smaller batch, torch.utils.checkpoint for what keeps most, or "
    "bfloat16 autocast.",
}
