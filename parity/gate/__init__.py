"""Base against head: every case in both, a verdict for every pair, and the report."""
