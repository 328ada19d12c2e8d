"""Kernels written in Triton, each with its plain torch twin in `twins.py`. Importing a module here imports triton."""
