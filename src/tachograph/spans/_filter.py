"""Which spans are recorded one by one."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from tachograph.exceptions import ConfigError
from tachograph.spans._names import DEFAULT_SPANS_EXPORT_BLACKLIST, text_of

__all__ = ["ExportCustomizationMode", "SpanFilter"]


class ExportCustomizationMode(Enum):
    """How the names given with it are meant."""

    EXPORT_ALL_SPANS = auto()
    WHITELIST_SPANS = auto()
    BLACKLIST_SPANS = auto()


class SpanFilter:
    """Decides by a span's name whether it is recorded; each span is judged by its own name alone.

    Raises:
        ConfigError: if the mode needs names and there are none, or has no use for them.
    """

    def __init__(
        self,
        mode: ExportCustomizationMode = ExportCustomizationMode.BLACKLIST_SPANS,
        names: Collection[Enum | str] | None = tuple(DEFAULT_SPANS_EXPORT_BLACKLIST),
    ) -> None:
        if not isinstance(mode, ExportCustomizationMode):
            raise ConfigError(
                f"export_customization_mode={mode!r}: one of {', '.join(map(str, ExportCustomizationMode))}"
            )
        if isinstance(names, str):
            raise ConfigError(f"span_name_filter={names!r}: a list of span names is expected")
        if mode is ExportCustomizationMode.EXPORT_ALL_SPANS and names:
            raise ConfigError(
                "span_name_filter: EXPORT_ALL_SPANS exports every span, so it takes no names; leave it out"
            )
        if mode is not ExportCustomizationMode.EXPORT_ALL_SPANS and not names:
            raise ConfigError(f"span_name_filter: {mode.name} needs at least one span name")
        self._names = frozenset(map(text_of, names or ()))
        self._keeps_named = mode is ExportCustomizationMode.WHITELIST_SPANS

    def keeps(self, name: str) -> bool:
        """Tell whether spans of that name are recorded one by one."""
        return (name in self._names) == self._keeps_named

    @property
    def keeps_short(self) -> bool:
        """Whether any of the very short spans is recorded one by one, which costs more per iteration."""
        return any(self.keeps(text_of(name)) for name in DEFAULT_SPANS_EXPORT_BLACKLIST)
