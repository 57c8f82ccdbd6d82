"""C++ sources of the native kernels, and how they are compiled."""
