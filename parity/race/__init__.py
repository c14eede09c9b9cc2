"""Kernels in several warps against the same in one, on a GPU."""
