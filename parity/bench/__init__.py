"""Speed on a GPU: every figure as a ratio to a device copy of the same bytes in the same run."""
