"""Experts that are not all in memory: how one lies in bytes, the file they are packed into, and a cache of them."""
