"""Which failures of a pytest suite a change causes."""
