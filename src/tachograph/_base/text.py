"""Formatting of durations for people, and of texts for tables."""

from __future__ import annotations

__all__ = ["csv_text", "format_duration"]


def csv_text(text: str) -> str:
    """Return a text as a cell of a CSV file. An apostrophe in front keeps spreadsheets from running it as a formula."""
    text = f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
    needs_quotes = text != text.strip() or not text or any(character in text for character in ',"\r\n')
    return '"' + text.replace('"', '""') + '"' if needs_quotes else text


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as ``3 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
