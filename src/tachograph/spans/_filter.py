"""The filter that decides which spans are recorded one by one."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from tachograph.exceptions import ConfigError
from tachograph.spans._names import DEFAULT_SPANS_EXPORT_BLACKLIST, text_of

__all__ = ["ExportCustomizationMode", "SpanFilter"]


class ExportCustomizationMode(Enum):
    """How the names of a filter are used."""

    EXPORT_ALL_SPANS = auto()
    WHITELIST_SPANS = auto()
    BLACKLIST_SPANS = auto()


class SpanFilter:
    """Decides by its name alone whether a span is recorded.

    Raises:
        ConfigError: if the mode needs names and there are none, or accepts none and there are some.
    """

    def __init__(
        self,
        mode: ExportCustomizationMode = ExportCustomizationMode.BLACKLIST_SPANS,
        names: Collection[Enum | str] | None = tuple(DEFAULT_SPANS_EXPORT_BLACKLIST),
    ) -> None:
        if not isinstance(mode, ExportCustomizationMode):
            raise ConfigError(
                f"Invalid export_customization_mode: {mode!r}; "
                f"expected one of {', '.join(map(str, ExportCustomizationMode))}"
            )
        if isinstance(names, str):
            raise ConfigError(f"span_name_filter={names!r}: expected a list of span names")
        if mode is ExportCustomizationMode.EXPORT_ALL_SPANS and names:
            raise ConfigError("span_name_filter should not be set when export_customization_mode is EXPORT_ALL_SPANS")
        if mode is not ExportCustomizationMode.EXPORT_ALL_SPANS and not names:
            raise ConfigError(
                f"span_name_filter should be a non-empty list when export_customization_mode is {mode.name}"
            )
        self._names = frozenset(map(text_of, names or ()))
        self._keeps_named = mode is ExportCustomizationMode.WHITELIST_SPANS

    def keeps(self, name: str) -> bool:
        """Return whether spans of a name are recorded one by one."""
        return (name in self._names) == self._keeps_named

    @property
    def keeps_short(self) -> bool:
        """Whether some of the short spans are recorded one by one, which costs more per iteration."""
        return any(self.keeps(text_of(name)) for name in DEFAULT_SPANS_EXPORT_BLACKLIST)
