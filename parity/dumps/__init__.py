"""Two end-to-end runs compared token by token."""
