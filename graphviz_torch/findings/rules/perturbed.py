"""Rules of `experiment`, which repeats the forward with one change and compares the outputs."""

from __future__ import annotations

from ..rule import external_rule


@external_rule("warning", "experiment")
def sample_leak() -> None:
    """The output for one sample changes if another sample of the batch changes.

    ## Why it matters

    The samples of a batch should be independent. A softmax or a norm over the batch, or a view that
    mixes axes, makes the prediction for one sample depend on the others. Scores then change with
    the batch size and the order of the data.

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

    Batch norm in train mode, contrastive losses and attention over a support set mix samples on
    purpose. The experiment recognizes batch statistics and comparisons of all pairs, and reports
    nothing for them.

    ## Not detected

    Leaks in a loss that is computed outside of the recorded module are not detected.

    ## See also

    - [torch.func.vmap](https://docs.pytorch.org/docs/stable/generated/torch.func.vmap.html)
    """


@external_rule("warning", "experiment")
def random_in_eval_mode() -> None:
    """In eval mode, the output depends on the random seed.

    ## Why it matters

    The validation score differs from run to run, and predictions are worse than necessary. The
    usual cause is a dropout that ignores `model.eval()`.

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

    Monte Carlo dropout, and models that sample, such as a VAE, are random on purpose.

    ## Not detected

    Random numbers from generators other than PyTorch's are not varied.

    ## See also

    - [Reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html)
    - [torch.nn.functional.dropout](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html)
    """


@external_rule("warning", "experiment")
def input_without_effect() -> None:
    """Operations use an input, but other values of the input do not change the output.

    ## Why it matters

    The input's effect is lost before the output, for example in a saturated function or a
    multiplication by zero. The model cannot learn from this input.

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

    A gate may start at zero. The experiment then prints that the input has no effect yet, but it
    yields no finding.

    ## Not detected

    Effects below the precision of the dtype cannot be distinguished from no effect.

    ## See also

    - [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html)
    """


@external_rule("info", "experiment")
def sum_loss() -> None:
    """The loss doubles if each sample is in the batch twice: the loss is a sum over the samples,
    not a mean.

    ## Why it matters

    The size of a step then depends on the batch size. A smaller last batch makes a smaller step,
    and a learning rate is suitable for only one batch size.

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

    A program may divide the sum by the number of tokens or samples later, or sum the likelihood of
    a whole data set.

    ## Not detected

    Sums that are computed without functions of torch are not detected.

    ## See also

    - [CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    """


@external_rule("warning", "experiment")
def precision_loss() -> None:
    """An operation loses more than half of the digits of its dtype, and the output is affected.

    ## Why it matters

    The result is mostly rounding error, for example if two large and almost equal numbers are
    subtracted. The model learns from noise.

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

    Quantization accepts a low precision on purpose.

    ## Not detected

    Operations without a float64 version are not compared.

    ## See also

    - [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html)
    """


@external_rule("warning", "experiment")
def memory_order() -> None:
    """The output changes if an input has the same values in a different memory format.

    ## Why it matters

    `as_strided`, a `view` of raw storage and kernels that read memory by address return different
    results for transposed or `channels_last` tensors. The model is then correct for contiguous
    inputs only, and no error is raised.

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

    A module may require contiguous inputs. Let it call `contiguous()`, or check `is_contiguous()`.

    ## Not detected

    Inputs with one dimension are not changed. Operations that raise an error for a different memory
    format are not reported.

    ## See also

    - [Tensor.contiguous](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html)
    - [torch.memory_format](https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch-memory-format)
    """


@external_rule("warning", "experiment")
def compiled_differs() -> None:
    """A compiled module returns different values from the same module in eager mode.

    ## Why it matters

    Scores of the compiled module then do not apply to the eager module. A difference far above
    rounding errors is a fault of the backend, or of a custom operator that was registered
    incorrectly.

    ## Example

    In this example, a backend that doubles all results simulates a faulty one:

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

    Dropout and other random operations use different random numbers with some backends. Set
    `torch._inductor.config.fallback_random = True` to make them equal.

    ## Not detected

    Differences as small as rounding errors, and differences in the gradients alone, are not
    reported.

    ## See also

    - [torch.compile troubleshooting](https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html)
    - [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html)
    """
