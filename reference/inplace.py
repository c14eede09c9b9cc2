"""What the in-place op leaves in its argument, as a new tensor."""

from .out_of_place import fused_mla_rope_out_of_place

# A reference never mutates its arguments, so that in place and out of place are one formula.
fused_mla_rope_inplace = fused_mla_rope_out_of_place

__all__ = ["fused_mla_rope_inplace"]
