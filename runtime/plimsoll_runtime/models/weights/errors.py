"""The one exception of opening and reading model files."""


class CheckpointError(Exception):
    """A model that cannot be served: one sentence that names the file, the field or tensor, and what is wrong."""
