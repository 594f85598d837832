"""The half of the backend that would compile."""

from typing import Any

from triton.backends.compiler import BaseBackend


class Compiler(BaseBackend):
    """Compiles nothing."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        """Only this backend's own, which torch.compile asks about: not a card's."""
        return bool(target.backend == "cpu")


Compiler.__abstractmethods__ = frozenset()  # what is abstract is never called
