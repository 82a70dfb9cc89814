"""`python -m graphviz_torch` is the command `graphviz-torch`."""

import sys

from .integrations.command.main import main

sys.exit(main())
