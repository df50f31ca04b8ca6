"""The runs of a log folder as a table. Knows runs on disk, but nothing about the server or the terminal."""

from tachograph.catalog._actions import ACTIONS, RunAction, parse_action
from tachograph.catalog._annotations import (
    ANNOTATION_FIELDS,
    JUDGEMENTS,
    AnnotationError,
    AnnotationOp,
    Annotations,
    MarkedStep,
    annotate,
    inverse_ops,
    read_annotations,
)
from tachograph.catalog._captured_diff import CapturedRun, Variation
from tachograph.catalog._catalog import Catalog, known_fields, pinned_first, sort_rows
from tachograph.catalog._columns import ColumnFacts, kind_of_value
from tachograph.catalog._config_keys import describes_training, is_repeat_key, is_seed
from tachograph.catalog._csv import csv_blocks
from tachograph.catalog._direction import direction_of
from tachograph.catalog._fields import FieldDescription, describe_fields
from tachograph.catalog._groups import (
    ColumnSpread,
    RunGroup,
    best_row,
    differing_fields,
    group_rows,
)
from tachograph.catalog._importance import KeyImportance, KeyRanking, UnrankedKey, rank_keys
from tachograph.catalog._judgements import JudgedRule, count_judgements, export_cases, judgement_field, judgement_of
from tachograph.catalog._lineage import (
    Origin,
    RelatedRun,
    ancestors_of,
    descendants_of,
    find_origins,
)
from tachograph.catalog._pair_diff import CodeChange, Difference, RunPairDiff, diff_pair
from tachograph.catalog._prune import (
    PruneError,
    PruneRule,
    PruneStep,
    apply_step,
    make_rule,
    plan_prune,
    prune_lock,
    read_policy,
    unknown_rule_fields,
)
from tachograph.catalog._query import Query, parse_query
from tachograph.catalog._reproduce import Rebuilt, rebuild, reproduction_script
from tachograph.catalog._results import default_results
from tachograph.catalog._row import AGGREGATES, FACTS, SIGNAL_ANNOTATION, Fact, FactKind, RunRow, needs_full, reader_of
from tachograph.catalog._runs_diff import DiffKey, DiffResult, DiffRun, FileVersions, RunsDiff, diff_rows
from tachograph.catalog._summary import flatten_config
from tachograph.catalog._syntax import QueryError, print_field, print_query
from tachograph.catalog._transfer import TransferError, copy_run, is_folder_target, move_run
from tachograph.catalog._trash import (
    TrashedRun,
    TrashError,
    empty_trash,
    list_trash,
    restore_run,
    tidy_trash,
    trash_folder,
    trash_run,
)
from tachograph.catalog._usage import PARTS, disk_usage
from tachograph.catalog._views import (
    SavedView,
    ViewError,
    delete_view,
    list_views,
    load_view,
    save_view,
    slug_of,
    view_from,
)

__all__ = [
    "ACTIONS",
    "AGGREGATES",
    "ANNOTATION_FIELDS",
    "AnnotationError",
    "AnnotationOp",
    "Annotations",
    "CapturedRun",
    "Catalog",
    "CodeChange",
    "ColumnFacts",
    "ColumnSpread",
    "DiffKey",
    "DiffResult",
    "DiffRun",
    "Difference",
    "FACTS",
    "Fact",
    "FactKind",
    "FieldDescription",
    "FileVersions",
    "KeyImportance",
    "KeyRanking",
    "MarkedStep",
    "Origin",
    "PARTS",
    "PruneError",
    "PruneRule",
    "PruneStep",
    "Query",
    "QueryError",
    "Rebuilt",
    "RelatedRun",
    "RunAction",
    "RunGroup",
    "RunPairDiff",
    "RunRow",
    "RunsDiff",
    "SIGNAL_ANNOTATION",
    "JUDGEMENTS",
    "JudgedRule",
    "count_judgements",
    "export_cases",
    "judgement_field",
    "judgement_of",
    "SavedView",
    "TransferError",
    "TrashError",
    "TrashedRun",
    "UnrankedKey",
    "Variation",
    "ViewError",
    "ancestors_of",
    "annotate",
    "apply_step",
    "best_row",
    "copy_run",
    "csv_blocks",
    "default_results",
    "delete_view",
    "descendants_of",
    "describe_fields",
    "describes_training",
    "diff_pair",
    "diff_rows",
    "differing_fields",
    "direction_of",
    "disk_usage",
    "empty_trash",
    "find_origins",
    "flatten_config",
    "group_rows",
    "inverse_ops",
    "is_folder_target",
    "is_repeat_key",
    "is_seed",
    "kind_of_value",
    "known_fields",
    "list_trash",
    "list_views",
    "load_view",
    "make_rule",
    "move_run",
    "needs_full",
    "parse_action",
    "parse_query",
    "pinned_first",
    "plan_prune",
    "print_field",
    "print_query",
    "prune_lock",
    "rank_keys",
    "read_annotations",
    "read_policy",
    "reader_of",
    "rebuild",
    "reproduction_script",
    "restore_run",
    "save_view",
    "slug_of",
    "sort_rows",
    "tidy_trash",
    "trash_folder",
    "trash_run",
    "unknown_rule_fields",
    "view_from",
]
