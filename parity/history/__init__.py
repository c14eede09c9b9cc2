"""What every night found: one Parquet file for each, what moved between them, and since when."""
