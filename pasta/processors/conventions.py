"""What processors know of frameworks and vendors: each framework and backend declares its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pasta.processors.architecture import Architecture

#: Shapes of the tensors of an operator, in order.
Shapes = Sequence[tuple[int, ...]]
#: Floating-point operations of an operator by its inputs and outputs.
Formula = Callable[[Shapes, Shapes], int]


class Conventions(NamedTuple):
    """Files, functions, operators and ranges of frameworks that have a known meaning, and
    architectures of devices."""

    #: Regular expressions for files of the framework, which reports skip.
    own_files: tuple[str, ...] = ()
    #: Regular expressions for files of libraries around the framework that may lie outside of
    #: site-packages. No finding names a line in them.
    library_files: tuple[str, ...] = ()
    #: Regular expressions of the files of data loaders.
    loader_files: tuple[str, ...] = ()
    #: Functions that wait for the worker processes of a data loader.
    loader_waits: tuple[str, ...] = ()
    #: Functions that wait for the thread that computes gradients.
    backward_waits: tuple[str, ...] = ()
    #: Name prefixes of ranges around the steps of optimizers.
    optimizer_steps: tuple[str, ...] = ()
    #: Name prefixes of operators around those that compute gradients.
    backward: tuple[str, ...] = ()
    #: Operators that add a gradient to a parameter's.
    gradient_sums: tuple[str, ...] = ()
    #: Name prefixes of operators that communicate with other processes.
    communication: tuple[str, ...] = ()
    #: Name prefixes of operators that only allocate, on behalf of their caller.
    allocators: tuple[str, ...] = ()
    #: Operators that copy a tensor within a change of its device or type, each with the operator
    #: that it is called from.
    moves: tuple[tuple[str, str], ...] = ()
    #: Operators whose floating-point operations follow from the shapes of their tensors.
    flops: tuple[tuple[str, Formula], ...] = ()
    #: Types of numbers by the framework's name: ("Half", "float16").
    types: tuple[tuple[str, str], ...] = ()
    #: Bytes of an element, by the framework's name of the type.
    item_sizes: tuple[tuple[str, int], ...] = ()
    #: Architectures of devices by name; None: not known.
    architectures: tuple[Callable[[str], Architecture | None], ...] = ()
    #: Regular expressions of the images of accelerators' runtimes, and of their functions that
    #: programs link to statically: call paths end in them, but no finding names them.
    runtime_images: tuple[str, ...] = ()
    runtime_functions: tuple[str, ...] = ()
    #: Names of hardware counters of the bytes that a kernel reads and writes in device memory.
    memory_counters: tuple[str, ...] = ()
    #: Hardware counters of floating-point operations: name, the units that do them
    #: (`Architecture.operations`), and operations for each count.
    flop_counters: tuple[tuple[str, str, int], ...] = ()
    #: Names of sources whose device times are recorded up to seconds later.
    buffered: tuple[str, ...] = ()

    def __or__(self, other: Conventions) -> Conventions:
        """The conventions of both."""
        return Conventions(*(getattr(self, each) + getattr(other, each) for each in self._fields))
