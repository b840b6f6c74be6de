"""Maps: the state of probes, declared in a tool's class and written by executors.

Each file has all parts of one map type. The declaration (`Counter`, `Histogram`, …) is checked when
the class is defined. The specification is the map with the options of a tool instance: its
placement on devices and its operation on the CPU. The accumulator is the attribute of a tool
instance: it adds up the counts of executors and provides `rows()`.
"""

from pasta.probes.maps.base import Map, accumulators_of
from pasta.probes.maps.bitmap import Bitmap
from pasta.probes.maps.counter import Counter
from pasta.probes.maps.histogram import Histogram
from pasta.probes.maps.per_pc import PerPC
from pasta.probes.maps.shadow import Shadow
from pasta.probes.maps.top_k import TopK
from pasta.probes.maps.trace import Trace

__all__ = [
    "Bitmap", "Counter", "Histogram", "Map", "PerPC", "Shadow", "TopK", "Trace",
    "accumulators_of",
]  # fmt: skip
