"""Does the case set notice planted bugs?  Mutants of kernels and wrappers, each run by itself."""
