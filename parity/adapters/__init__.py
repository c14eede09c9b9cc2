"""Ops of other projects, described in the same public terms as our own."""
