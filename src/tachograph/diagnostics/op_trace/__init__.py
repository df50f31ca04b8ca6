"""What unequal work costs a job, from a table of the operations of all its ranks."""

from tachograph.diagnostics.op_trace._imbalance import Imbalance, Loss, find_imbalance
from tachograph.diagnostics.op_trace._table import OpTable, read_ops

__all__ = ["Imbalance", "Loss", "OpTable", "find_imbalance", "read_ops"]
