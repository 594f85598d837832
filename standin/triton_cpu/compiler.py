"""The half of the backend that would compile."""

from triton.backends.compiler import BaseBackend


class Compiler(BaseBackend):
    """Compiles nothing."""


Compiler.__abstractmethods__ = frozenset()  # what is abstract is never called
