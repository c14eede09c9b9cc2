"""Whether every line of a fix still stands."""
