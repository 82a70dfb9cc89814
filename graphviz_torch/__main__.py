"""`python -m graphviz_torch` is the command `graphviz-torch`."""

import sys

from .cli import main

sys.exit(main())
