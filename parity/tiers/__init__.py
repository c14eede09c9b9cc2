"""Given cases on this machine's GPU or CPU, and whether another machine's records say the same."""
