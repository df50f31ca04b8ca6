"""Redaction: the last check on every value before it is stored or sent.

The typed fields (`_fields`) decide which values an event may contain. Redaction comes after them and only ever removes:
it replaces every text that could be private by ``[redacted]``. It errs on the side of privacy; a version of four
numbers, for example, could be an IP address and is therefore redacted.

A text passes if none of these rules applies, in this order:

1. It is longer than 120 characters.
2. It contains a slash or a backslash, unless it is ``organization/name`` with a listed organization.
3. It contains a character other than ASCII letters, digits, spaces and ``_ . + ( ) - ®``. This alone excludes URLs,
   e-mail addresses, IPv6 addresses, absolute paths, options, markup and every other script.
4. One of `_PATTERNS` matches anywhere in it: paths, keys, IP and MAC addresses, ids, phone and card numbers, host
   names, file names. Keys include all formats of `_base/secret_formats.py`, by which runs are masked, too.
5. It is a sentence: several words that are not the name of a device.
6. Part of it looks generated and not written by a person, see `looks_random`.

A private name that looks like any other name cannot be recognised: ``acme_merger`` is as good an identifier as
``train_loop``. Only the fields can exclude it, by not accepting free text.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Collection
from itertools import islice
from typing import Any

from tachograph._base.secret_formats import FORMATS
from tachograph.usage._fields import REDACTED

__all__ = ["is_private", "looks_random", "private_reason", "redact"]

_MAX_CHARS = 120
_MAX_DEPTH = 16
_MAX_VALUES = 5_000

# Python's names for code without a name of its own.
_ANONYMOUS_CODE = re.compile(r"<(lambda|module|locals|genexpr|listcomp|dictcomp|setcomp)>")
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_.+() ®-]*")
_PLAIN_HUB_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")

# Each pattern is searched anywhere in the text, so that a neighbour cannot hide anything.
_PATTERNS = {
    # A leading dot is a hidden file, two dots the parent folder, two dashes an option or a folder of the Hub's cache.
    "path": r"^\.|\.\.|--",
    # Formats of services are in `FORMATS`; these are keys in other encodings, and words before a secret.
    "key": r"AAAA[BCE][0-9A-Za-z]Nz|MII[A-Z][A-Za-z0-9+]{12}"
    r"|BEGIN [A-Z ]*(?:KEY|CERTIFICATE)|(?<![A-Za-z])ssh-(?:rsa|dss|ed25519)"
    r"|(?i:(?:password|passwd|passphrase|secret|token|api[-_ ]?key|bearer|authorization|basic) +\S)",
    "IP address": r"\d+(?:\.\d+){3}|(?<!\d)\d{1,3}([-_ ])\d{1,3}(?:\1\d{1,3}){2}(?!\d)",
    "personal number": r"\d(?:[ .()+_-]{0,3}\d){8}",
    "id": r"(?i)0x[0-9a-f]{6}|[0-9a-f]{16}|(?=[a-f]*\d)[0-9a-f]{12}"
    r"|[0-9a-f]{8}[-_ ](?:[0-9a-f]{4}[-_ ]){3}[0-9a-f]{12}",
    "MAC address": r"(?i)[0-9a-f]{2}([-._ ])[0-9a-f]{2}(?:\1[0-9a-f]{2}){4}"
    r"|(?=[a-f.-]{0,13}\d)[0-9a-f]{4}([-.])[0-9a-f]{4}\2[0-9a-f]{4}",
    "host": r"(?i)\.(?:com|net|org|edu|gov|mil|lan|corp|intranet|localdomain|arpa|onion)$|\((?:at|dot)\)"
    # Modules may end in these as well, but their names contain no dash or digit.
    r"|^(?=.*[-\d]).*[a-z0-9]\.(?:internal|local|home|cloud|io|ai|co|eu|de|fr|cn|ru|jp|uk|nl|ch|es|se|br|ca|kr|us)$",
    "file": r"(?i:\.(?:py|ipynb|jsonl|txt|rst|docx|xlsx?|pptx?|odt|eml|tsv|yml|ini|cfg|pem|crt|p12|pfx|safetensors|ckpt"
    r"|pth?|npy|npz|pkl|h5|sqlite|gz|tgz|bz2|xz|zst|7z|rar|sh|bat|ps1|dll|dylib|so|bin|bak|tmp|wav|mp3|mp4|mov|jpe?g"
    r"|png|gif)$)"
    # Modules and methods may end in these as well, but not after a name with a dash or a space.
    r"|(?i:^(?=.*[- ]).*\.(?:json|ndjson|yaml|toml|conf|csv|pdf|doc|rtf|md|html?|svg|log|env|key|zip|tar|sql|db|parquet"
    r"|arrow|pickle|gguf|exe|lock)$)"
    r"|^(?!builtins|fsspec|msgspec|pandas|pyarrow|pydantic|rich|ruamel)(?:\w+\.(?:csv|CSV|parquet)"
    r"|[a-z0-9_]+\.(?:json|ndjson|yaml|toml|conf|pdf|doc|rtf|html?|svg|zip|tar|sql|db|arrow|pickle))$",
}

# Only names of devices have more than three words, or two words with a capital and no digit.
_DEVICE_MAKERS = re.compile(
    r"\b(?:nvidia|tesla|quadro|titan|geforce|rtx|gtx|amd|radeon|instinct|intel|apple|ascend|gaudi|habana|tpu)\b", re.I
)
_MAX_WORDS = 3
_MAX_DEVICE_WORDS = 8

# Terms of the field that no rule of `looks_random` would accept by itself: names of models and layers, and types such
# as `float8`, `E4m3fn` and `BF16`.
_FIELD_TERMS = re.compile(
    r"Conv|CUDA|Glm|HTTP|Kwargs|Mgpstr|MiMo|Mkldnn|M[Ll][Pp]|Mo[Ee]|Mxfp4|PRIVATEUSE1|Qwen|ReLU|RMSNorm|RoPE|Rwkv|SQuAD"
    r"|ViT|Wav2Vec2|XLM|[Ee]\dm\d(?:b11)?(?:fnuz|fnu|fn)?|(?i:u?int|float|bf|fp|avx)\d{1,3}"
)
# How a person writes names: words in lower case, capitalised words, acronyms, numbers.
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_VOWEL = re.compile(r"[aeiouyAEIOUY]")
_CONSONANTS = re.compile(r"[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ]{5,}")
_SIZE = re.compile(r"[A-Za-z]{0,4}\d{1,4}[A-Za-z]{0,2}|\d+")  # as in names of models: 8B, A22B, FP8, 0905


def is_private(text: str, organizations: Collection[str] = ()) -> bool:
    """Return whether a text could be private, see `private_reason`."""
    return private_reason(text, organizations) is not None


def private_reason(text: str, organizations: Collection[str] = ()) -> str | None:
    """Return which kind of private information a text could be; None if it may be sent.

    The reason is one of a few fixed words and never a part of the text.

    Args:
        text: the text that is about to be stored or sent.
        organizations: owners whose models may be named, as in ``organization/name``.
    """
    # A subclass of str could be compared as one text and serialised as another.
    if type(text) is not str:
        return "object"
    if text == REDACTED:
        return None
    if len(text) > _MAX_CHARS:
        return "long text"
    # A full-width slash counts as a slash. Normalisation can turn one character into eighteen.
    original, text = text, unicodedata.normalize("NFKC", text)
    if len(text) > _MAX_CHARS:
        return "long text"
    if "/" in text or "\\" in text:
        organization, _, name = text.partition("/")
        allowed_owners = {str(one).casefold() for one in organizations}
        if original != text or organization.casefold() not in allowed_owners or not _PLAIN_HUB_NAME.fullmatch(name):
            return "path"
        text = name
    text = _ANONYMOUS_CODE.sub(r"\1", text)
    if not _PLAIN_TEXT.fullmatch(text):
        return "character"
    for reason, pattern in _compiled_patterns():
        if pattern.search(text) or (reason == "key" and _contains_secret(text)):
            return reason
    if _is_sentence(text):
        return "sentence"
    return "random" if looks_random(text) else None


def looks_random(text: str) -> bool:
    """Return whether part of a text was generated, such as a key or a token, and not written by a person.

    Known terms of the field are removed first. Every run of letters and digits is then divided into parts as a person
    would write them: ``Llama3VLTextModel`` is ``Llama 3 VL Text Model``. Digits, parts of one or two letters, parts
    without a vowel and five or more consonants in a row are *unreadable*. A run of at least 12 characters is random if

    * at least 8 of its characters are unreadable, which is half of it (a third from 20, a quarter from 32 characters);
    * it has 14 characters and digits in four places, in three if its letters are of one case;
    * it has 14 characters, and more than a quarter of them are the rare letters j, k, q, v, w, x and z;
    * it contains 12 capitals and digits in a row, and a digit anywhere;
    * one part has 28 letters, or 16 of which fewer than a quarter are vowels or five in a row are consonants, or 12
      capitals of which four in a row are consonants.

    A token may contain dashes and underscores, so the runs between them are also judged together by the first rule if
    they mix capitals and small letters. Short runs and sizes such as ``8B`` do not count.
    """
    for token in re.split(r"[^A-Za-z0-9_-]", _FIELD_TERMS.sub(" ", text)):
        runs = re.findall(r"[A-Za-z0-9]+", token)
        if any(_is_random_run(run) for run in runs):
            return True
        long_runs = [run for run in runs if len(run) >= 5 and not _SIZE.fullmatch(run)]
        num_chars = sum(map(len, long_runs))
        if len(long_runs) < 2 or num_chars < 16 or token.islower() or token.isupper():
            continue
        if _is_mostly_unreadable([part for run in long_runs for part in _PARTS.findall(run)], num_chars):
            return True
    return False


def _is_random_run(run: str) -> bool:
    num_chars = len(run)
    if num_chars < 12:
        return False
    parts = _PARTS.findall(run)
    if _is_mostly_unreadable(parts, num_chars):
        return True
    num_numbers = sum(part[0].isdigit() for part in parts)
    if num_chars >= 14:
        is_one_case = run.islower() or run.isupper()
        if num_numbers >= (3 if is_one_case else 4) or sum(map(run.count, "jkqvwxz")) * 4 > num_chars:
            return True
    if num_numbers and re.search(r"[A-Z0-9]{12}", run):
        return True
    return any(_is_random_part(part) for part in parts)


def _is_mostly_unreadable(parts: list[str], num_chars: int) -> bool:
    num_unreadable = sum(map(_num_unreadable, parts))
    return num_unreadable >= 8 and num_unreadable * (2 if num_chars < 20 else 3 if num_chars < 32 else 4) >= num_chars


def _num_unreadable(part: str) -> int:
    if part[0].isdigit() or len(part) < 3 or not _VOWEL.search(part):
        return len(part)
    return sum(map(len, _CONSONANTS.findall(part)))


def _is_random_part(part: str) -> bool:
    if part[0].isdigit() or len(part) < 12:
        return False
    if part.isupper() and re.search(r"[^AEIOUY]{4}", part):
        return True
    is_unpronounceable = _CONSONANTS.search(part) is not None or len(_VOWEL.findall(part)) * 4 < len(part)
    return (len(part) >= 16 and is_unpronounceable) or len(part) >= 28


def _is_sentence(text: str) -> bool:
    words = text.split()
    if len(words) < 2:
        return False
    num_lower = sum(word[0].islower() for word in words)
    if _DEVICE_MAKERS.search(text):
        return len(words) > _MAX_DEVICE_WORDS or (len(words) > _MAX_WORDS and num_lower > 1)
    has_capital = any(character.isupper() for character in text)
    has_digit = any(character.isdigit() for character in text)
    return len(words) > _MAX_WORDS or (has_capital and not has_digit)


@functools.cache
def _compiled_patterns() -> list[tuple[str, re.Pattern[str]]]:
    # Compiled on first use: an app whose telemetry is off does not pay for it.
    return [(reason, re.compile(pattern)) for reason, pattern in _PATTERNS.items()]


def _contains_secret(text: str) -> bool:
    """Return whether a text contains a secret of a known format, or the part of one that the format lists."""
    return any(hint in text and _compile(pattern).search(text) is not None for hint, pattern in _secret_patterns())


@functools.cache
def _secret_patterns() -> list[tuple[str, str]]:
    """Return a pattern for each secret, with a text that every match contains: few texts contain one."""
    patterns: list[tuple[str, str]] = []
    for secret in FORMATS:
        if secret.whole:
            patterns += [(secret.hint, pattern) for pattern in (secret.whole, secret.part) if pattern]
        for prefix in secret.prefixes:
            literal = re.escape(prefix)
            patterns.append((prefix, f"(?<![A-Za-z0-9]){literal}{secret.body}"))
            if secret.part is not None:
                patterns.append((prefix, f"{literal}{secret.part}"))
    return patterns


# Compiled on first use: a process sees few of the formats, and compiling all of them takes milliseconds.
_compile = functools.cache(re.compile)


def redact(value: Any, organizations: Collection[str] = ()) -> Any:
    """Return a copy of a JSON value with everything that could be private replaced by ``[redacted]``.

    Texts and the keys of dictionaries are checked by `private_reason`. Keys that are redacted become one key with the
    value of the first. None, booleans, floats and integers of 64 bits pass; NaN and infinities are up to the caller.
    Everything else (tuples, sets, bytes, paths, subclasses of the types above) is redacted as a whole, and so is
    everything nested deeper than 16 levels. The copy is truncated after 5,000 values.

    Args:
        value: the value that is about to be stored or sent.
        organizations: owners whose models may be named, as in ``organization/name``.
    """
    return _Redactor(organizations).copy(value, 0)


class _Redactor:
    """One traversal of a value, which may be larger than memory or contain itself."""

    def __init__(self, organizations: Collection[str]) -> None:
        self._organizations = tuple(organizations)
        self._num_left = _MAX_VALUES

    def copy(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return REDACTED if _is_private_cached(value, self._organizations) else value
        if value is None or kind is bool or kind is float:
            return value
        if kind is int:
            # A longer integer could encode a text.
            return value if -(2**63) <= value < 2**63 else REDACTED
        if depth >= _MAX_DEPTH or (kind is not dict and kind is not list):
            return REDACTED
        return self._copy_dict(value, depth) if kind is dict else self._copy_list(value, depth)

    def _copy_list(self, values: list[Any], depth: int) -> list[Any]:
        copies = []
        for value in values:
            if self._num_left == 0:
                break
            self._num_left -= 1
            copies.append(self.copy(value, depth + 1))
        return copies

    def _copy_dict(self, values: dict[Any, Any], depth: int) -> dict[str, Any]:
        copies: dict[str, Any] = {}
        # Snapshot of the items: another thread may be adding some.
        for key, value in list(islice(values.items(), self._num_left)):
            if self._num_left == 0:
                break
            self._num_left -= 1
            name = REDACTED if type(key) is not str or _is_private_cached(key, self._organizations) else key
            if name not in copies:
                copies[name] = self.copy(value, depth + 1)
        return copies


@functools.lru_cache(maxsize=1024)
def _is_private_cached(text: str, organizations: tuple[str, ...]) -> bool:
    """Cached because the same texts come again and again: names of fields, words of choices."""
    return is_private(text, organizations)
