"""Records: what a line of the journal says and how it is written. Knows nothing of who made it or who reads it."""

from tachograph.records._codec import decode, decode_block, encode, marked, to_json
from tachograph.records._kinds import (
    KINDS,
    METRIC_KINDS,
    POINT_KINDS,
    RESERVED_FIELDS,
    SCHEMA_VERSION,
    SEVERITIES,
    severity_rank,
)
from tachograph.records._masking import MASK, mask_arguments, mask_mapping, mask_text
from tachograph.records._names import check_run_name
from tachograph.records._table import StepTable
from tachograph.records._values import (
    OMIT,
    Later,
    Problem,
    finite,
    happened,
    is_array,
    is_number,
    is_settled,
    plain,
    settle,
    step_of,
)

__all__ = [
    "KINDS",
    "MASK",
    "Later",
    "METRIC_KINDS",
    "OMIT",
    "POINT_KINDS",
    "RESERVED_FIELDS",
    "SCHEMA_VERSION",
    "SEVERITIES",
    "Problem",
    "StepTable",
    "check_run_name",
    "decode",
    "decode_block",
    "encode",
    "finite",
    "happened",
    "is_array",
    "is_number",
    "is_settled",
    "mask_arguments",
    "mask_mapping",
    "mask_text",
    "marked",
    "plain",
    "settle",
    "severity_rank",
    "step_of",
    "to_json",
]
