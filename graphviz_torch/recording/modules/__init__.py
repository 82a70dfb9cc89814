"""Record the calls of modules: their modes, arguments and forwards, and updates of weights."""
