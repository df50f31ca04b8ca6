"""Records: the content and the encoding of a journal line. Independent of the code that writes or reads them."""

from tachograph.records._alert import AlertRecord
from tachograph.records._clock import CLOCK_SET, clock_jump_s
from tachograph.records._codec import decode, decode_block, encode, escape_line_separators, mark_non_finite, to_json
from tachograph.records._kinds import (
    CONFIG_CHANGED,
    KINDS,
    LOSS_NAMES,
    METRIC_KINDS,
    POINT_KINDS,
    RESERVED_FIELDS,
    SCHEMA_VERSION,
    SEVERITIES,
    SUMMARY,
    severity_rank,
)
from tachograph.records._lazy import LazyValue, copy_to_host, has_device_scalars, wait_for_event
from tachograph.records._masking import MASK, MaskingBudget, mask_arguments, mask_mapping, mask_text
from tachograph.records._names import check_run_name, suggest_run_name
from tachograph.records._table import Encodable, StepTable
from tachograph.records._values import (
    OMIT,
    RecordCut,
    ValueBudget,
    ValueProblem,
    bounded_items,
    finite_or_none,
    freeze,
    is_array,
    is_frozen,
    is_number,
    step_of,
    to_plain,
)

__all__ = [
    "AlertRecord",
    "CLOCK_SET",
    "CONFIG_CHANGED",
    "Encodable",
    "KINDS",
    "LOSS_NAMES",
    "LazyValue",
    "MASK",
    "MaskingBudget",
    "METRIC_KINDS",
    "OMIT",
    "POINT_KINDS",
    "RESERVED_FIELDS",
    "RecordCut",
    "SCHEMA_VERSION",
    "SEVERITIES",
    "SUMMARY",
    "StepTable",
    "ValueBudget",
    "ValueProblem",
    "bounded_items",
    "check_run_name",
    "clock_jump_s",
    "copy_to_host",
    "decode",
    "decode_block",
    "encode",
    "escape_line_separators",
    "finite_or_none",
    "freeze",
    "has_device_scalars",
    "is_array",
    "is_frozen",
    "is_number",
    "mark_non_finite",
    "mask_arguments",
    "mask_mapping",
    "mask_text",
    "severity_rank",
    "step_of",
    "suggest_run_name",
    "to_json",
    "to_plain",
    "wait_for_event",
]
