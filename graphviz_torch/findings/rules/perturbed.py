"""Experiments: repeat the forward with one change, and compare the outputs."""

from __future__ import annotations

from ..rule import external_rule


@external_rule("warning", "experiment")
def sample_leak() -> None:
    """The output of a sample changes when another sample of the batch does.

    ## Why it matters

    Samples of a batch are meant to be independent. A softmax or a norm over the batch, or a view
    that mixes the axes, makes the prediction for one sample depend on its neighbours: scores change
    with the batch size and with the order of the data.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x).softmax(0)  # <- reported


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(8, 4)).square().sum().backward()
    findings = experiment(recording, "sample").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x).softmax(1)


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(8, 4)).square().sum().backward()
    findings = experiment(recording, "sample").findings
    ```

    ## When it is intended

    Batch norm in train mode, contrastive losses and attention over a support set: where the layer
    says so, the experiment concludes nothing.

    ## Not detected

    Leaks in a loss that is computed outside of the recorded module.

    ## See also

    - [torch.func.vmap](https://docs.pytorch.org/docs/stable/generated/torch.func.vmap.html)
    """


@external_rule("warning", "experiment")
def future_leak() -> None:
    """An output changes when a later position does, though the model predicts the next position.

    ## Why it matters

    In training the model can read the answer from its input, so the loss falls far; when it
    generates, the later positions do not exist yet. Usually a causal mask is missing, or a
    convolution is padded on both sides.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
            self.mix = nn.Conv1d(8, 8, 3, padding=1)

        def forward(self, tokens):
            h = self.embed(tokens).transpose(1, 2)
            return self.out(self.mix(h).transpose(1, 2))  # <- reported


    model, tokens = Net(), torch.randint(20, (4, 10))
    with record(model, experiments=True) as recording:
        logits = model(tokens[:, :-1]).transpose(1, 2)
        F.cross_entropy(logits, tokens[:, 1:]).backward()
    findings = experiment(recording, "positions").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
            self.mix = nn.Conv1d(8, 8, 3)

        def forward(self, tokens):
            h = self.embed(tokens).transpose(1, 2)
            return self.out(self.mix(F.pad(h, (2, 0))).transpose(1, 2))


    model, tokens = Net(), torch.randint(20, (4, 10))
    with record(model, experiments=True) as recording:
        logits = model(tokens[:, :-1]).transpose(1, 2)
        F.cross_entropy(logits, tokens[:, 1:]).backward()
    findings = experiment(recording, "positions").findings
    ```

    ## When it is intended

    Models that see the whole sequence, such as BERT: their targets are not the next tokens, and
    nothing is concluded.

    ## Not detected

    Leaks of fewer positions than the experiment changes.

    ## See also

    - [torch.nn.functional.scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)
    - [Transformer masks](https://docs.pytorch.org/docs/stable/generated/torch.nn.Transformer.html)
    """


@external_rule("warning", "experiment")
def target_shift() -> None:
    """The targets are the inputs, or the inputs shifted by more than one position.

    ## Why it matters

    With a shift of none the model learns to copy its input, with a shift of two it learns to skip a
    token. Both have a falling loss, and generate nonsense.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment

    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    tokens = torch.randint(20, (4, 10))
    with record(model, experiments=True) as recording:
        F.cross_entropy(model(tokens).transpose(1, 2), tokens).backward()  # <- reported
    findings = experiment(recording, "positions").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment

    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    tokens = torch.randint(20, (4, 10))
    with record(model, experiments=True) as recording:
        F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:]).backward()
    findings = experiment(recording, "positions").findings
    ```

    ## When it is intended

    Autoencoders copy their input on purpose, but through a bottleneck that sees all positions: they
    are not reported. Several libraries shift the labels inside of the model.

    ## Not detected

    Targets that are not the tokens of an input.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    """


@external_rule("warning", "experiment")
def random_in_eval_mode() -> None:
    """In eval mode the output changes with the random seed.

    ## Why it matters

    A validation score then differs from run to run, and predictions are worse than they need to be:
    a dropout that ignores `model.eval()` is the usual cause.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.5)  # <- reported


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(8, 4)).square().sum().backward()
    findings = experiment(recording, "seed").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.5, training=self.training)


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(8, 4)).square().sum().backward()
    findings = experiment(recording, "seed").findings
    ```

    ## When it is intended

    Monte Carlo dropout and models that sample, such as a VAE.

    ## Not detected

    Random numbers from generators other than PyTorch's.

    ## See also

    - [Reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html)
    - [torch.nn.functional.dropout](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html)
    """


@external_rule("info", "experiment")
def unused_input() -> None:
    """The output does not depend on an input: no operation uses the input.

    ## Why it matters

    A condition, a mask or a time step that was forgotten leaves the model without it, and nothing
    fails.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x, mask):
            return super().forward(x)


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(8, 4), torch.rand(8, 3)).square().sum().backward()  # <- reported
    findings = experiment(recording, "inputs").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x, mask):
            return super().forward(x) * mask


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(8, 4), torch.rand(8, 3)).square().sum().backward()
    findings = experiment(recording, "inputs").findings
    ```

    ## When it is intended

    An argument that is there for the signature alone, or for another mode of the model.

    ## Not detected

    Inputs that are used, but too little: only no effect at all is reported.

    ## See also

    - [torch.nn.Module.forward](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.forward)
    """


@external_rule("warning", "experiment")
def input_without_effect() -> None:
    """Operations use an input, but the output is the same for other values.

    ## Why it matters

    The input is lost on its path, as in a saturated function or a multiplication by zero: the model
    cannot learn from it.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x, scale):
            return super().forward(x) + 0 * scale  # <- reported


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(8, 4), torch.rand(8, 3)).square().sum().backward()
    findings = experiment(recording, "inputs").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x, scale):
            return super().forward(x) + scale


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(8, 4), torch.rand(8, 3)).square().sum().backward()
    findings = experiment(recording, "inputs").findings
    ```

    ## When it is intended

    A gate that begins at zero: the experiment says that the input has no effect yet, and reports
    nothing.

    ## Not detected

    Effects that are smaller than the precision of the dtype.

    ## See also

    - [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html)
    """


@external_rule("info", "experiment")
def sum_loss() -> None:
    """The loss doubles when the samples come twice: it is a sum, not a mean.

    ## Why it matters

    The length of a step then depends on the size of the batch, so that a smaller last batch makes a
    smaller step, and a learning rate holds for one batch size alone.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment

    model = nn.Linear(4, 3)
    with record(model, experiments=True) as recording:
        scores, target = model(torch.randn(8, 4)), torch.arange(8) % 3
        loss = F.cross_entropy(scores, target, reduction="sum")  # <- reported
        loss.backward()
    findings = experiment(recording, "batch_twice").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment

    model = nn.Linear(4, 3)
    with record(model, experiments=True) as recording:
        scores, target = model(torch.randn(8, 4)), torch.arange(8) % 3
        loss = F.cross_entropy(scores, target)
        loss.backward()
    findings = experiment(recording, "batch_twice").findings
    ```

    ## When it is intended

    A sum that is divided by a number of tokens or samples later, and likelihoods of a whole data
    set.

    ## Not detected

    Sums that are written by hand, outside of functions of torch.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    """


@external_rule("warning", "experiment")
def precision_loss() -> None:
    """An operation loses more than half of the digits of its dtype, and the output shows it.

    ## Why it matters

    The result is mostly rounding error, as where two large numbers are subtracted that are almost
    equal. The model learns from noise.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1e6 - 1e6  # <- reported


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
    findings = experiment(recording, "float64").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x)


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(8, 4)).square().mean().backward()
    findings = experiment(recording, "float64").findings
    ```

    ## When it is intended

    Low precision that is bought on purpose, as in quantisation.

    ## Not detected

    Operations that have no float64 version.

    ## See also

    - [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html)
    """


@external_rule("warning", "experiment")
def memory_order() -> None:
    """The output differs if an input has the same values in another memory format.

    ## Why it matters

    `as_strided`, a `view` of raw storage and kernels that read memory by address compute something
    else for transposed or `channels_last` tensors. The model is right on contiguous inputs alone,
    and no error says so.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x.as_strided((6, 4), (4, 1)))  # <- reported


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(6, 4)).square().mean().backward()
    findings = experiment(recording, "memory_order").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x.contiguous().as_strided((6, 4), (4, 1)))


    model = Net(4, 3)
    with record(model, experiments=True) as recording:
        model(torch.randn(6, 4)).square().mean().backward()
    findings = experiment(recording, "memory_order").findings
    ```

    ## When it is intended

    A module that documents contiguous inputs: call `contiguous()` or check `is_contiguous()` in it.

    ## Not detected

    Inputs of one dimension, and operations that raise an error for another memory format.

    ## See also

    - [Tensor.contiguous](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html)
    - [torch.memory_format](https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch-memory-format)
    """


@external_rule("warning", "experiment")
def compiled_differs() -> None:
    """A compiled module returns other values than the same module does in eager mode.

    ## Why it matters

    Scores that were measured with one do not hold for the other. A difference far above rounding is
    a fault of the backend, or of a custom operator that was registered with a wrong description.

    ## Example

    A backend that computes something else, in place of a faulty one:

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment


    def backend(graph, inputs):
        return lambda *args: [result * 2 for result in graph(*args)]


    model = torch.compile(nn.Linear(8, 8), backend=backend)
    with record(model, experiments=True) as recording:
        model(torch.randn(6, 8)).mean().backward()  # <- reported
    findings = experiment(recording, "eager").findings
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record
    from graphviz_torch.experiments import experiment

    model = torch.compile(nn.Linear(8, 8), backend="aot_eager")
    with record(model, experiments=True) as recording:
        model(torch.randn(6, 8)).mean().backward()
    findings = experiment(recording, "eager").findings
    ```

    ## When it is intended

    Dropout and other random operations draw different numbers under some backends:
    `torch._inductor.config.fallback_random = True` makes them equal.

    ## Not detected

    Differences of the size of rounding errors, and differences in the gradients alone.

    ## See also

    - [torch.compile troubleshooting](https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html)
    - [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html)
    """
