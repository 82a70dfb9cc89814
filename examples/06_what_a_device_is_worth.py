"""From which size is a GPU faster than the CPU? Copies and work are timed separately.

On a machine without a GPU, the table contains only the CPU, and names the missing device.
"""

import torch

from graphviz_torch.devices import compare_devices, measure_bandwidth


def normalize(matrix):
    return matrix / matrix.norm(dim=1, keepdim=True)


for work in ("matmul", "training step", normalize):
    result = compare_devices(work, devices=["cpu", "cuda"], sizes=[32, 128], seconds=0.01)
    print(result.table(), end="\n\n")
    assert [timing.size for timing in result.timings_of("cpu")] == [32, 128]
    assert all(timing.to_device == timing.to_cpu == 0 for timing in result.timings_of("cpu"))
    if not torch.cuda.is_available():
        assert [device for device, why in result.absent] == ["cuda"]

result.plot().render("worth.svg")

bandwidth = measure_bandwidth("cuda", sizes=[2**12, 2**20], seconds=0.01)
print(bandwidth.table())
assert bool(bandwidth.rates) == torch.cuda.is_available()
