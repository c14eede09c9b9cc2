"""What the kernels compile to, without a GPU."""
