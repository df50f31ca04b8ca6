"""The read side: runs as columns that are quick to draw. Knows records and journals, not who asks."""

from tachograph.store._columns import Axis
from tachograph.store._completions import CompletionPlace, CompletionView, read_rows
from tachograph.store._query import Line, Mark
from tachograph.store._run import StoredRun
from tachograph.store._store import Store
from tachograph.store._timeline import Heap, SpanView

__all__ = [
    "Axis",
    "CompletionPlace",
    "CompletionView",
    "Heap",
    "Line",
    "Mark",
    "SpanView",
    "Store",
    "StoredRun",
    "read_rows",
]
