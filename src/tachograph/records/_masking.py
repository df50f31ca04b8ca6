"""Mask secrets before they are written: by the name of a value, by the format of a secret, and by the text around it.

`mask_text` collects the spans of all secrets in a text and then replaces them. The work is linear in the length of the
text, whatever the text contains, because Python's regular expressions hold the interpreter lock: a slow one would stop
training. Two searches find spans. Each reads a bounded number of characters per attempt, and reads further only where
it masks the text.

* Anchors. One pass finds every character such as `_`, `=` or `:` at which a secret can be recognised. The text right
  before it decides: a prefix of the table of formats (`hf_`), a name (`password=`), an option (`--token x`) or a
  scheme (`://user:password@`). Names are read backwards from the anchor.
* Hints. Some formats have no anchor (`AKIA…`), and some phrases consist of several words (`wandb login KEY`). Each has
  a hint, a short text that every match contains. Searching for it is much faster than matching, and few texts contain
  one.

The work is known before it is done: characters plus anchors. If it exceeds the rest of the `MaskingBudget`, the text
is cut at the last anchor that the budget covers. The rest is dropped because it cannot be searched.
"""

from __future__ import annotations

import functools
import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from tachograph._base.secret_formats import FORMATS
from tachograph.records._secret_names import is_channel, is_secret, kind_of_name, looks_generated

__all__ = ["MASK", "MaskingBudget", "mask_arguments", "mask_mapping", "mask_text"]

MASK = "[masked]"

_Span = tuple[int, int]

_MAX_WORK = 32_000_000
"""The work for one record, in characters read. A megabyte of dense JSON needs less."""
_WORK_PER_ANCHOR = 256
_MIN_SECRET_CHARS = 8
_MIN_KEPT_CHARS = 256
"""A text this short is never cut."""
_MAX_WORD_CHARS = 4_096
_MAX_HARMLESS_CHARS = 200
"""A longer value under the name of a secret is a secret."""

# Names, options and their values
_NAME_BACKWARDS = re.compile(r"""[ \t]{0,8}[]"'`*\\]{0,4}([A-Za-z0-9_.-]{1,64})""")
_WORD_BACKWARDS = re.compile(r"[ \t]{1,2}([A-Za-z]{2,20})")
_OPTION = re.compile(r"""([A-Za-z][\w.-]{0,63})["']?,?[ \t]{1,8}(?:[rbuf]{0,2}(\\{0,3}["'`]))?""")
_VALUE_START = re.compile(
    r"""(?:[ \t]{0,4}(?:str|bytes|SecretStr|Optional\[str\]|str \| None)[ \t]{0,4}=)?"""  # name: str = value
    r"""[=>]?(?:\n(?=[\w+/.-]{0,40}\d)(?=[\w+/.-]{12})|[ \t]{0,8})"""  # on the next line only a generated one
    r"""(?:[rbuf]{0,2}(\\{0,3}["'`]))?"""
)
_UNTIL_DELIMITER = re.compile(r"""[^\s"'`&;,]*""")
_UNTIL_QUOTE_OR_LINE_END = re.compile(r"""[^\n"']*""")
# A comma, a semicolon or an ampersand ends a value only before a space or another name, a quote only before a bracket
# and the like: a password may contain all of them.
_ENDS_VALUE = re.compile(r"""[,;&](?=\s|\Z|["']?[A-Za-z_][\w.-]{0,63}["']?[ ]?[=:])|["'`](?=[]\s,;:)}>&\\]|\Z)""")
_SCHEME = re.compile(r"(?:bearer|basic|token|api-?key|key|bot|negotiate|ntlm|ssws)[ \t]{1,4}(?=\S)", re.IGNORECASE)
_SCHEME_WITH_FIELDS = re.compile(r"(?:aws4-hmac-sha256|digest|oauth|hawk)[ \t]", re.IGNORECASE)
_NOT_SECRET = re.compile(r"none|null|nil|true|false|undefined|\*{3,}", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.\d{0,20})?(?:e[+-]?\d{1,3})?", re.IGNORECASE)
# Words after an option that a sentence is about.
_PROSE = {
    "a", "and", "argument", "as", "can", "flag", "for", "from", "has", "here", "if", "in", "instead", "is", "must",
    "needs", "not", "on", "option", "or", "parameter", "requires", "should", "that", "the", "to", "value", "was",
    "when", "which", "will", "with", "you",
}  # fmt: skip
_USER_OPTIONS = {"u", "user", "proxy-user", "auth", "basic-auth", "userpwd"}
# Names that mean a secret only as an option.
_OPTION_NAMES = {"pass": "password", "pw": "password"}
# Names whose meaning depends on the text before them: "?sig=", "API key:", "next token:".
_NAMES_IN_CONTEXT = {"code", "key", "sig", "signature", "token"}
_GENERATED_VALUE = re.compile(r"[A-Za-z0-9+/_.%-]*={0,2}")

# Addresses
_HOST = re.compile(r"[\w.-]{1,100}(?=/)")
_HOSTS_WITH_TOKENS = (
    "slack.com", "slack-gov.com", "discord.com", "discordapp.com", "feishu.cn", "larksuite.com", "dingtalk.com",
    "qq.com", "office.com", "zapier.com", "ifttt.com", "telegram.org",
)  # fmt: skip
_WEBHOOK = re.compile(
    r"(?:hooks\.slack(?:-gov)?\.com/|(?:[a-z]{1,16}\.)?discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/"
    r"|[\w.-]{0,64}(?:feishu\.cn|larksuite\.com)/open-apis/bot/|oapi\.dingtalk\.com/robot/"
    r"|qyapi\.weixin\.qq\.com/cgi-bin/webhook/|[\w.-]{1,64}\.webhook\.office\.com/|outlook\.office\.com/webhook/"
    r"|hooks\.zapier\.com/hooks/|maker\.ifttt\.com/trigger/)[^\s\"'<>`]+"
)
_TELEGRAM = re.compile(r"api\.telegram\.org/(?:file/)?bot(?=[^/\s\"'])")
_UNTIL_SLASH = re.compile(r"[^/\s\"']*")
_USER = re.compile(r"""([^/\s:@"'<>\\]{0,256})([:@])""")
_NO_PASSWORD = re.compile(r"""//|\d{1,5}(?:[/?#\s"',;)\]}]|\Z)""")  # another URL, or a port
_PASSWORD_IN_URL = re.compile(r"[^\s\"'<>`]{1,2048}")

# Blocks
_BLOCK_EDGE = re.compile(r"-{4,5} ?(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}")
_BLOCK_LINES = re.compile(r"[A-Za-z0-9+/=\\\r\n]*")

# Sets a variable: `ENV HF_TOKEN x` of a Dockerfile, `aws configure set aws_secret_access_key x`.
_ENVIRONMENT = (
    r"\b(?:set|setenv|env|arg)[ \t]{1,4}\w{0,40}_(?:key|token|password)[ \t]{1,4}"
    r"(?!(?:and|as|before|for|from|in|is|on|or|to|via)\b)([^\s\"'`]{1,4096})"
)
# Phrases: patterns in which the group is the secret, by a hint in lower case.
_PHRASES = {
    "bearer": [r"\bbearer[ \t]{1,4}(?=[\w.~+/-]{0,40}\d|[\w.~+/-]{20})([\w.~+/=-]{8,})"],
    "login": [
        r"\b(?:wandb|swanlab|comet|vault)[ \t]{1,4}login(?:[ \t]{1,4}\S{1,128}){0,6}?[ \t]{1,4}"
        r"(?=[\w-]{0,40}\d)([\w-]{16,256})(?=[\s\"'`;,]|\Z)",
        r"\b(?:docker|podman|nerdctl|helm|az|acr|registry|oras|crane)[ \t]{1,4}login\b"
        r"[^\n|;]{0,200}?[ \t]-p[ \t=]{0,4}(\S{1,256})",
    ],
    "pass": [
        r"\b(?:password|passwd)[ \t]{1,4}(?:is[ \t])?[\"']([^\"'\n]{1,256})",
        r"\bmachine\s{1,8}\S{1,256}\s{1,8}(?:(?:login|account)\s{1,8}\S{1,256}\s{1,8}){0,2}"
        r"password\s{1,8}(\S{1,4096})",
        r"\bsshpass[ \t]{1,4}-p[ \t]{0,4}(\S{1,256})",
    ],
    "password>": [r"<\w{0,20}password>([^<\n]{1,4096})"],
    "_key ": [_ENVIRONMENT],
    "_token ": [_ENVIRONMENT],
    "_password ": [_ENVIRONMENT],
    "identified by": [r"\bidentified by[ \t]{1,4}(?:password[ \t]{1,4})?[\"']([^\"'\n]{1,256})"],
    "mysql": [r"\bmysql(?:dump|admin|import)?\b[^\n|;]{0,200}?[ \t]-p(?=\S)(\S{1,256})"],
    "redis-cli": [r"\bredis-cli\b[^\n|;]{0,200}?[ \t]-a[ \t]{1,4}(\S{1,256})"],
    "private-lines": [r"\bprivate-lines: ?\d{1,4}((?:[\r\n]{1,2}[A-Za-z0-9+/=]{1,100}){1,200})"],
}

# Prefixes that end in a separator, with the pattern of the text after them, by their last two characters.
_PREFIXES: dict[str, list[tuple[str, str]]] = {}
# Formats without a separator: the patterns of secrets, by a hint that every such secret contains.
_HINTS: dict[str, list[str]] = {}
for _format in FORMATS:
    if _format.whole:
        _HINTS.setdefault(_format.hint, []).append(_format.whole)
    for _prefix in _format.prefixes:
        if _prefix[-1] in "_.-":
            _PREFIXES.setdefault(_prefix[-2:], []).append((_prefix, _format.body))
        else:
            _literal = re.escape(_prefix)
            _word_start = rf"(?:(?<![A-Za-z0-9]{_literal})|(?<=\\[nrt]{_literal})|(?<=%[0-9A-F]{{2}}{_literal}))"
            _HINTS.setdefault(_format.hint or _prefix, []).append(f"{_literal}{_word_start}{_format.body}")
# Capitals are rare, so hints that start with one are found in the same pass as the anchors, and so are long parts after
# a dot. These are their first characters.
_CAPITALS = "".join(sorted({hint[0] for hint in _HINTS if hint[0].isupper()}))
_OTHER_HINTS = [hint for hint in _HINTS if hint[0] not in f"{_CAPITALS}."]
_LONG_PART = re.compile(r"[A-Za-z0-9_-]{27}")

# An anchor is a separator in a word with enough characters after it for a secret, a character between a name and its
# value, the dash before the name of an option, or the first letter of a hint.
_ANCHOR = re.compile(
    rf"""[_.=:{_CAPITALS}-](?:(?<=[A-Za-z0-9][_.-])(?=[A-Za-z0-9_./+=-]{{10}})|(?<=[=:])"""
    r"""|(?<=[\s"'`-]-)(?=[A-Za-z])|"""
    + "|".join(
        f"(?<={capital})(?:{'|'.join(re.escape(hint[1:]) for hint in _HINTS if hint[0] == capital)})"
        for capital in _CAPITALS
    )
    + ")"
)

# Compiled on first use: a process sees few of the formats, and compiling all of them takes milliseconds.
_compile = functools.cache(re.compile)


class MaskingBudget:
    """Bounds the work of masking for all texts of one record that the calling thread masks inside the ``with`` block.

    Outside of any, each text has a budget of its own.
    """

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        self._outer: int | None = _budget.work_left
        if self._outer is None:
            _budget.work_left = _MAX_WORK

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._outer is None:
            _budget.work_left = None


class _ThreadBudget(threading.local):
    work_left: int | None = None


_budget = _ThreadBudget()


def mask_text(text: str) -> str:
    """Replace anything that looks like an API key, a token, a private key or a password.

    A text whose search would exceed the budget is cut, and then ends with ``… [cut, 12345 characters]``.
    """
    num_chars = len(text)
    if num_chars < _MIN_SECRET_CHARS:
        return text
    text = text[:_MAX_WORK]
    anchors = [match.start() for match in _ANCHOR.finditer(text)]
    num_kept = _spend(text, anchors)
    if num_kept < len(text):
        text = text[:num_kept]
        anchors = anchors[: bisect_left(anchors, num_kept)]
    spans: list[_Span] = []
    hint_starts = _find_at_anchors(text, anchors, spans)
    _find_by_hints(text, hint_starts, spans)
    if spans:
        text = _replace(text, spans)
    return text if num_kept == num_chars else f"{text}… [cut, {num_chars} characters]"


def mask_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values with every secret masked, at any depth; names decide which values are secret."""
    return {name: _mask_value(name, value) for name, value in values.items()}


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Mask a command line: ``--hf-token x``, ``--hf-token=x``, ``HF_TOKEN=x`` and ``-u user:x`` alike."""
    safe_arguments: list[str] = []
    option = ""  # the option that the next argument belongs to
    is_login = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if option and not argument.startswith("--") and _is_secret_option(option, argument):
            safe_arguments.append(MASK)
            if option.endswith("s") and not argument.startswith("-"):
                continue  # --api-keys a b
        elif equals and _is_secret_option(name.lstrip("-+~"), value):
            safe_arguments.append(f"{name}={MASK}")
        elif (name.lstrip("-") if equals else option) in _USER_OPTIONS and (password := _password_of(argument)):
            safe_arguments.append(f"{argument.removesuffix(password)}{MASK}")
        elif is_login and len(argument) >= 16 and not argument.startswith("-") and looks_generated(argument):
            safe_arguments.append(MASK)  # wandb login KEY
        else:
            safe_arguments.append(mask_text(argument))
        is_login = is_login or argument == "login"
        option = argument.lstrip("-") if argument.startswith("-") and not equals else ""
    return safe_arguments


def _is_secret_option(name: str, value: str) -> bool:
    return is_secret(_OPTION_NAMES.get(name.lower(), name), value) and not _NOT_SECRET.fullmatch(value)


def _password_of(user: str) -> str:
    """Return the password of ``user:password``; a pair of numbers is a user and a group."""
    name, _, password = user.partition(":")
    return "" if password.startswith("//") or (name + password).isdigit() else password


# Values of a mapping -------------------------------------------------------------------------------------------------


def _mask_value(name: str, value: Any) -> Any:
    if is_secret(name, value):
        return MASK
    if isinstance(value, dict) and name == "notify":
        return {key: _mask_notify(str(key), item) for key, item in value.items()}
    if isinstance(value, dict) and is_channel(name):
        return {
            key: MASK if is_secret(f"{name}_{key}", item) else _mask_value(key, item) for key, item in value.items()
        }
    if isinstance(value, dict):
        return mask_mapping(value)
    if isinstance(value, list):
        if any(type(item) is str and item.startswith("-") for item in value) and all(type(i) is str for i in value):
            return mask_arguments(value)
        return [_mask_value("", item) for item in value]
    return value


def _mask_notify(name: str, value: Any) -> Any:
    """Mask a `notify` section: every address is a credential, and a template may contain a key."""
    if isinstance(value, dict) and name != "template":
        return {key: _mask_notify(str(key), item) for key, item in value.items()}
    if name == "template" or (isinstance(value, str) and "://" in value and name != "dashboard_url"):
        return MASK if value else value
    return _mask_value(name, value)


# Budget and spans ----------------------------------------------------------------------------------------------------


def _spend(text: str, anchors: list[int]) -> int:
    """Take the work of a text from the budget; return how many of its characters the budget covers."""
    available = _MAX_WORK if _budget.work_left is None else _budget.work_left
    work = len(text) + _WORK_PER_ANCHOR * len(anchors)
    if _budget.work_left is not None:
        _budget.work_left = max(available - work, 0)
    if work <= available or len(text) <= _MIN_KEPT_CHARS:
        return len(text)
    num_anchors = next(
        (index for index, position in enumerate(anchors) if position + _WORK_PER_ANCHOR * index > available),
        len(anchors),
    )
    end = max(available - _WORK_PER_ANCHOR * num_anchors, 0)
    # A secret must not be cut in two: the first half may be too short to be recognised.
    start = max(end - _MAX_WORD_CHARS, 0)
    space = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
    return max(space, start)


def _replace(text: str, spans: Iterable[_Span]) -> str:
    parts: list[str] = []
    position = 0
    for start, end in sorted(spans):
        if start >= position:
            parts += (text[position:start], MASK)
        position = max(position, end)
    return "".join([*parts, text[position:]])


def _find_by_hints(text: str, hint_starts: set[str], spans: list[_Span]) -> None:
    """Find the secrets of formats without a separator, the phrases and the private keys.

    Args:
        text: the text.
        hint_starts: the first characters of the hints that the pass over the anchors found.
        spans: the spans are added to it.
    """
    for hint in _OTHER_HINTS:
        if hint in text:
            _search(text, hint, spans)
    if hint_starts:
        for hint in _HINTS:
            if hint[0] in hint_starts:
                _search(text, hint, spans)
    lower_text = text.lower()
    for hint, patterns in _PHRASES.items():
        if hint in lower_text:
            for pattern in patterns:
                spans += (match.span(1) for match in _compile(pattern, re.IGNORECASE).finditer(text))
    if "PRIVATE KEY" in text:
        spans += _find_blocks(text)


def _search(text: str, hint: str, spans: list[_Span]) -> None:
    for pattern in _HINTS[hint]:
        regex = _compile(pattern)
        spans += (match.span(regex.groups) for match in regex.finditer(text))


def _find_blocks(text: str) -> Iterator[_Span]:
    """Find private keys in PEM and PGP blocks; one that was truncated lacks its first or its last line."""
    begin: int | None = None
    last_end = 0
    for edge in _BLOCK_EDGE.finditer(text):
        if edge[1] == "BEGIN":
            begin = edge.start() if begin is None else begin
            continue
        if begin is None:
            lines = _BLOCK_LINES.match(text[last_end : edge.start()][::-1])
            begin = edge.start() - (lines.end() if lines else 0)
        last_end = edge.end()
        yield begin, last_end
        begin = None
    if begin is not None:
        yield begin, len(text)


def _find_at_anchors(text: str, anchors: list[int], spans: list[_Span]) -> set[str]:
    """Find secrets at anchors; return the first characters of the hints among them."""
    hint_starts: set[str] = set()
    last_end = 0
    for position in anchors:
        if position < last_end:
            continue
        character = text[position]
        span = None
        if character in "_.-":
            if character == "." and _LONG_PART.match(text, position + 1):
                hint_starts.add(character)
            if text[position - 1 : position + 1] in _PREFIXES:
                span = _find_prefixed(text, position, last_end)
            elif character == "-" and not text[position - 1].isalnum():
                span = _option_value(text, position)
        elif character == "=" or (character == ":" and not text.startswith("//", position + 1)):
            span = _named_value(text, position)
        elif character == ":":
            span = _part_of_url(text, position)
        else:
            hint_starts.add(character)
        if span is not None:
            spans.append(span)
            last_end = span[1]
    return hint_starts


def _find_prefixed(text: str, position: int, last_end: int) -> _Span | None:
    """Find a secret whose prefix ends at an anchor."""
    after = position + 1
    for prefix, body in _PREFIXES[text[position - 1 : after]]:
        start = after - len(prefix)
        if start >= last_end and text.startswith(prefix, start) and _is_word_start(text, start):
            match = _compile(body).match(text, after)
            if match is not None:
                return start, match.end()
    return None


def _is_word_start(text: str, start: int) -> bool:
    """Return whether a word starts here, also right after an escape such as ``\\n`` or ``%3D``."""
    before = text[max(start - 3, 0) : start]
    is_in_word = before[-1:].isalnum() and before[-1:].isascii()
    return not is_in_word or before[-2:] in {"\\n", "\\r", "\\t"} or before[:1] == "%"


# Names and values ----------------------------------------------------------------------------------------------------


def _named_value(text: str, position: int) -> _Span | None:
    """Find the value after `=` or `:` if the name before it is the name of a secret."""
    before = text[max(position - 100, 0) : position][::-1]
    match = _NAME_BACKWARDS.match(before)
    if match is None:
        return None
    name = match[1][::-1]
    if name.lower() in _NAMES_IN_CONTEXT:
        name = _name_in_context(name, before[match.end() :])
    kind = kind_of_name(name)
    if not kind:
        return None
    opening = _VALUE_START.match(text, position + 1)
    assert opening is not None  # noqa: S101 - every part is optional
    start = opening.end()
    if text.startswith(MASK, start):
        return None
    if opening[1]:
        end = _closing_quote(text, opening[1], start)
    elif kind == "auth":
        end = _GENERATED_VALUE.match(text, start).end()  # type: ignore[union-attr] # matches an empty text, too
    elif kind == "text" and (name.lower().endswith(("authorization", "cookie"))):
        end = _end_of_header(text, start, name)
    else:
        end = _end_of_bare_value(text, start)
    return (start, end) if _is_secret_value(name, text[start : min(end, start + _MAX_HARMLESS_CHARS + 1)]) else None


def _name_in_context(name: str, before: str) -> str:
    """Return a longer name for one that alone is unclear, by the text before it, which is given backwards."""
    if before[:1] in {"?", "&"} and name.lower() != "token":
        return "url_signature" if name.lower().startswith("sig") else "url_auth"
    owner = _WORD_BACKWARDS.match(before)
    return f"{owner[1][::-1]}_{name}" if owner else name


def _is_secret_value(name: str, value: str) -> bool:
    """Return whether a value in a text is a secret under a name. A long one always is, so that it is read once."""
    if not value or len(value) > _MAX_HARMLESS_CHARS:
        return bool(value)
    if _NOT_SECRET.fullmatch(value) or (_NUMBER.fullmatch(value) and kind_of_name(name) != "always"):
        return False
    return is_secret(name, value)


def _closing_quote(text: str, quote: str, start: int) -> int:
    """Return the end of a quoted value: its closing quote, or the end of the line if there is none."""
    end = text.find(quote, start)
    while end > 0 and len(quote) == 1 and text[end - 1] == "\\":
        end = text.find(quote, end + 1)
    if end < 0:
        end = len(text)
    line_end = text.find("\n", start, end)
    return end if line_end < 0 else line_end


def _end_of_bare_value(text: str, start: int) -> int:
    """Return the end of a value without quotes; closing brackets after it do not belong to it."""
    if text.startswith(("[", "{"), start) and not text.startswith(MASK, start):
        closing = text.find("]" if text[start] == "[" else "}", start, start + _MAX_WORD_CHARS)
        if closing > 0:
            return closing + 1
    end = start
    while True:
        end = _UNTIL_DELIMITER.match(text, end).end()  # type: ignore[union-attr] # matches an empty text, too
        if end == len(text) or text[end].isspace() or _ENDS_VALUE.match(text, end):
            break
        end += 1
    while end > start + 1 and text[end - 1] in ")]}":
        end -= 1
    return end


def _end_of_header(text: str, start: int, name: str) -> int:
    """Return the end of the value of a header such as ``Authorization: Bearer …``."""
    if not name.lower().endswith("authorization") or _SCHEME_WITH_FIELDS.match(text, start):
        return _UNTIL_QUOTE_OR_LINE_END.match(text, start).end()  # type: ignore[union-attr]
    scheme = _SCHEME.match(text, start)
    return _end_of_bare_value(text, scheme.end() if scheme else start)


def _option_value(text: str, position: int) -> _Span | None:
    """Find the value of an option: ``--password x``, and ``'--password', 'x'`` in a list of arguments."""
    option = _OPTION.match(text, position + 1)
    if option is None:
        return None
    name, quote = option[1], option[2]
    start = option.end()
    name = _OPTION_NAMES.get(name.lower(), name)
    if (not kind_of_name(name) and name not in _USER_OPTIONS) or text.startswith(("--", MASK), start):
        return None
    end = _closing_quote(text, quote, start) if quote else _end_of_bare_value(text, start)
    value = text[start : min(end, start + _MAX_HARMLESS_CHARS + 1)]
    if name in _USER_OPTIONS and (password := _password_of(value)):
        return start + len(value) - len(password), end
    is_prose = not quote and value.rstrip(".").lower() in _PROSE
    return (start, end) if not is_prose and kind_of_name(name) and _is_secret_value(name, value) else None


# Addresses -----------------------------------------------------------------------------------------------------------


def _part_of_url(text: str, position: int) -> _Span | None:
    """Find the secret part of a URL, at its `://`: all of a webhook, the token of a bot, the user and the password."""
    start = position + 3
    host = _HOST.match(text, start)
    if host is not None and host[0].endswith(_HOSTS_WITH_TOKENS):
        if webhook := _WEBHOOK.match(text, start):
            scheme = 5 if text.startswith("https", position - 5) else 4 if text.startswith("http", position - 4) else 0
            return position - scheme, webhook.end()
        if bot := _TELEGRAM.match(text, start):
            return bot.end(), _UNTIL_SLASH.match(text, bot.end()).end()  # type: ignore[union-attr]
    user = _USER.match(text, start)
    if user is None:
        return None
    if user[2] == "@":  # a token without a password
        return (start, user.end(1)) if len(user[1]) >= 16 else None
    password = None if _NO_PASSWORD.match(text, user.end()) else _PASSWORD_IN_URL.match(text, user.end())
    at = password[0].rfind("@") if password is not None else -1
    return (start, user.end() + at) if at > 0 else None
