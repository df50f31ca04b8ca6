"""All rules by name: the built-in rules, then the rules of installed packages.

A package adds a rule through an entry point in the group `tachograph.rules`. An installed rule is on by default, like a
built-in one. If it cannot be loaded, the user may not even know that it is there, so it is skipped with one warning;
only asking for it by name is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tachograph._base.guard import warn
from tachograph._base.registry import Registry
from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._signals import SIGNALS
from tachograph.exceptions import ConfigError
from tachograph.records import SEVERITIES

__all__ = ["RuleCatalog"]


class RuleCatalog(Mapping[str, type[Rule]]):
    """A mapping from rule name to rule class. Installed packages are searched once, on first use."""

    def __init__(self, built_in: Mapping[str, str]) -> None:
        """Create the catalog.

        Args:
            built_in: our own rules by name, each as `module:class`, in the order in which they receive values.
        """
        self._registry = Registry("rule", "tachograph.rules", built_in)
        self._names: list[str] | None = None
        self._rules: dict[str, type[Rule]] = {}
        self._skipped_names: set[str] = set()

    def names(self) -> list[str]:
        """Return the names of all rules, including installed ones that may fail to load. Imports no rule."""
        if self._names is None:
            self._names = self._registry.names()
        return self._names

    def load(self, name: str) -> type[Rule]:
        """Import a rule and return it.

        Raises:
            ConfigError: if the rule does not exist, or an installed one cannot be loaded.
        """
        if name not in self._rules:
            rule = self._registry.load(name)
            if not self.is_built_in(name):
                _check(name, rule)
            self._rules[name] = rule
        return self._rules[name]

    def is_built_in(self, name: str) -> bool:
        """Return whether a rule is one of ours."""
        return name in self._registry.built_in

    def skip(self, name: str, error: ConfigError) -> None:
        """Warn, once, that an installed rule is not used."""
        if name not in self._skipped_names:
            self._skipped_names.add(name)
            warn("skipped an installed rule: %s. Turn it off with rules={%r: False}.", error, name)

    def __getitem__(self, name: str) -> type[Rule]:
        if name not in self.names():
            raise KeyError(name)
        return self.load(name)

    def __iter__(self) -> Iterator[str]:
        for name in self.names():
            try:
                self.load(name)
            except ConfigError as error:
                if self.is_built_in(name):
                    raise
                self.skip(name, error)
            else:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.names()


def _check(name: str, rule: Any) -> None:
    """Reject an installed rule that would fail later, in the middle of a run."""
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise ConfigError(f"rule {name!r} is {rule!r}, which is not a subclass of tachograph.diagnostics.Rule")
    where = f"rule {name!r} ({rule.__module__}.{rule.__qualname__})"
    if getattr(rule, "name", None) != name:
        raise ConfigError(f"{where}: `name` must be {name!r}, the name of the entry point")
    if not isinstance(getattr(rule, "meaning", None), str) or not isinstance(getattr(rule, "advice", None), tuple):
        raise ConfigError(f"{where}: `meaning` must be a string and `advice` a tuple of strings")
    if not (isinstance(rule.Thresholds, type) and issubclass(rule.Thresholds, RuleSettings)):
        raise ConfigError(f"{where}: `Thresholds` must be a subclass of tachograph.diagnostics.RuleSettings")
    if rule.severity not in SEVERITIES:
        raise ConfigError(f"{where}: `severity` must be one of {', '.join(SEVERITIES)}, got {rule.severity!r}")
    if unknown := {*rule.block_signals, *rule.value_signals} - set(SIGNALS):
        raise ConfigError(f"{where}: unknown signal {min(unknown)!r}; available: {', '.join(SIGNALS)}")
    if "step" in rule.record_kinds:
        raise ConfigError(f"{where}: `record_kinds` must not contain 'step'; use `block_signals` or `value_signals`")
