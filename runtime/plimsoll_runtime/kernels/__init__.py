"""Kernels: the plain-torch specification and the faster paths that must equal it."""
