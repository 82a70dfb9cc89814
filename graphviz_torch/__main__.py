"""Run the command `graphviz-torch` as `python -m graphviz_torch`."""

import sys

from .integrations.command.main import main

sys.exit(main())
