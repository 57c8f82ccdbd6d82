"""What can be wrong with a model's own text files: found at load, told in one sentence, never during a request."""


class TokenizerError(Exception):
    """The vocabulary cannot be read exactly; the sentence names the file or key, its value, and what to do."""


class TemplateError(Exception):
    """The chat template cannot be compiled; the sentence says why."""
