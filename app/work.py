"""What runs in a job's process: one forward and backward of what a visitor chose."""

from __future__ import annotations

import torch  # noqa: F401
