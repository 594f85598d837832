"""The half of the backend that would run what was compiled."""

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class Driver(DriverBase):
    """Runs nothing."""

    @classmethod
    def is_active(cls) -> bool:
        """Yes: without an active driver vLLM takes Triton for broken."""
        return True

    def get_current_target(self) -> GPUTarget:
        """One that no compiler of a card takes."""
        return GPUTarget("cpu", 0, 1)


Driver.__abstractmethods__ = frozenset()  # what is abstract is never called
