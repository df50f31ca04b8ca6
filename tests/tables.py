"""Tables of cheap cases in one test each: as hundreds of tests, collecting them takes longer than running them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["each"]


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with all cases of a table; it fails with the list of the cases that fail.

    Args:
        names: the arguments of a case, separated by commas.
        cases: the value of the argument, or a tuple of the values if there are several.
    """
    arguments = [name.strip() for name in names.split(",")]
    table = [dict(zip(arguments, case if len(arguments) > 1 else (case,), strict=True)) for case in cases]
    assert table, "a table without cases"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_all(**fixtures: Any) -> None:
            failures = []
            for case in table:
                try:
                    test(**fixtures, **case)
                except Exception as error:
                    failures.append(f"{case}: {type(error).__name__}: {error}")
            assert not failures, "\n\n".join([f"{len(failures)} of {len(table)} cases failed", *failures])

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        run_all.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run_all

    return decorate
