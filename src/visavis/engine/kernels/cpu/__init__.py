"""Compiled CPU kernels: C++ built once a machine with the compiler that is there; without one, torch does the work."""
