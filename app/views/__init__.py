"""One thin page each: read the choice, call one function, draw what came back."""
