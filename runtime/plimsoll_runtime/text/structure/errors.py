"""The one failure of this package: a form that cannot be enforced, which is for its client to change."""


class StructureError(Exception):
    """A sentence that says what is wrong with the form, which limit it passes, and what to change."""
