"""The second net: what has passed the typed fields is looked at once more before it leaves the machine.

The fields decide what may be sent; the net only ever takes away. It knows what the fields make (versions, names of
modules, functions, classes and devices, words of a list, hub ids of listed organisations) and takes everything else
for private: paths, addresses, keys, numbers of people, sentences, and whatever looks drawn by lot. It errs on the side
of silence: a version of four numbers could be an IP address, so it is one.

What it cannot know: a name that looks like any other name. `acme_merger` is as good a function as `train_loop`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Collection
from itertools import islice
from typing import Any

from tachograph.usage._fields import REDACTED

__all__ = ["caught", "is_suspicious", "why_suspicious"]

_MOST_CHARACTERS = 120
_MOST_LEVELS = 16
_MOST_VALUES = 5_000

# Names that Python gives to what has none.
_UNNAMED = re.compile(r"<(lambda|module|locals|genexpr|listcomp|dictcomp|setcomp)>")
# Paths, URLs, addresses, e-mails, options, markup, escapes and every script but ours need a character not in here.
_TAME = re.compile(r"[A-Za-z0-9_.+() ®-]*")
_TAME_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")

# Each is looked for anywhere in the text, so that nothing hides by being glued to something else.
_LOOKS = {
    # A leading dot is a hidden file, two are a way up; two dashes are an option or a folder of the hub's cache.
    "path": r"^\.|\.\.|--",
    "key": r"(?:hf|gsk|r8|npm|ph[cx]|api_org|gh[pousr]|wandb_v1|dop_v1|lin_api|glsa|shp(?:at|ss|ca))_[A-Za-z0-9]{16}"
    r"|[rps]k_(?:live|test)_[A-Za-z0-9]{10}|(?:github|dckr)_pat_[A-Za-z0-9_-]{16}"
    r"|sk-(?:ant|proj|or|svcacct|lf)-|(?<![A-Za-z0-9])sk-(?=[\w-]*\d)[\w-]{16}"
    r"|(?:glpat|nvapi|pplx|xai|pypi|tskey|xapp)-(?=[\w-]*\d)[\w-]{16}|xox[a-z]-[A-Za-z0-9-]{8}"
    r"|A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{12}|LTAI[A-Za-z0-9]{12}|AIza[\w-]{20}|ya29\.[\w-]{16}|hvs\.[\w-]{16}"
    r"|SG\.[\w-]{16}|eyJ[\w-]{10,}\.[\w-]{10}|AAAA[BCE][0-9A-Za-z]Nz|MII[A-Z][A-Za-z0-9+]{12}"
    r"|BEGIN [A-Z ]*(?:KEY|CERTIFICATE)|AGE-SECRET-KEY|(?<![A-Za-z])ssh-(?:rsa|dss|ed25519)"
    r"|(?i:(?:password|passwd|passphrase|secret|token|api[-_ ]?key|bearer|authorization|basic) +\S)",
    "IP address": r"\d+(?:\.\d+){3}|(?<!\d)\d{1,3}([-_ ])\d{1,3}(?:\1\d{1,3}){2}(?!\d)",
    "number of a person": r"\d(?:[ .()+_-]{0,3}\d){8}",
    "id": r"(?i)0x[0-9a-f]{6}|[0-9a-f]{16}|(?=[a-f]*\d)[0-9a-f]{12}"
    r"|[0-9a-f]{8}[-_ ](?:[0-9a-f]{4}[-_ ]){3}[0-9a-f]{12}",
    "MAC address": r"(?i)[0-9a-f]{2}([-._ ])[0-9a-f]{2}(?:\1[0-9a-f]{2}){4}"
    r"|(?=[a-f.-]{0,13}\d)[0-9a-f]{4}([-.])[0-9a-f]{4}\2[0-9a-f]{4}",
    "host": r"(?i)\.(?:com|net|org|edu|gov|mil|lan|corp|intranet|localdomain|arpa|onion)$|\((?:at|dot)\)"
    # Modules end in these too, but none with a dash or a digit in it.
    r"|^(?=.*[-\d]).*[a-z0-9]\.(?:internal|local|home|cloud|io|ai|co|eu|de|fr|cn|ru|jp|uk|nl|ch|es|se|br|ca|kr|us)$",
    "file": r"(?i:\.(?:py|ipynb|jsonl|txt|rst|docx|xlsx?|pptx?|odt|eml|tsv|yml|ini|cfg|pem|crt|p12|pfx|safetensors|ckpt"
    r"|pth?|npy|npz|pkl|h5|sqlite|gz|tgz|bz2|xz|zst|7z|rar|sh|bat|ps1|dll|dylib|so|bin|bak|tmp|wav|mp3|mp4|mov|jpe?g"
    r"|png|gif)$)"
    # Modules and methods end in these too, but not after such a name.
    r"|(?i:^(?=.*[- ]).*\.(?:json|ndjson|yaml|toml|conf|csv|pdf|doc|rtf|md|html?|svg|log|env|key|zip|tar|sql|db|parquet"
    r"|arrow|pickle|gguf|exe|lock)$)"
    r"|^(?!builtins|fsspec|msgspec|pandas|pyarrow|pydantic|rich|ruamel)(?:\w+\.(?:csv|CSV|parquet)"
    r"|[a-z0-9_]+\.(?:json|ndjson|yaml|toml|conf|pdf|doc|rtf|html?|svg|zip|tar|sql|db|arrow|pickle))$",
}

# Names of devices are the only texts of more than three words, and of two words with a capital and no digit.
_MAKERS = re.compile(
    r"\b(?:nvidia|tesla|quadro|titan|geforce|rtx|gtx|amd|radeon|instinct|intel|apple|ascend|gaudi|habana|tpu)\b", re.I
)
_MOST_WORDS = 3
_MOST_WORDS_OF_DEVICES = 8

# How many bits it costs to say which letter follows which, counted in the names of modules, classes and functions of
# PyTorch, Transformers and what they import: a row for each letter from a to z, a digit for each one after it.
_AFTER = (
    "95449759596344949342669759", "29673879459277489558398959", "39783993693589279563599979",
    "37741779399568569655499969", "58446669799453756233867589", "49874499299475279465498769",
    "57771765499565659346499979", "28772699499768368564598969", "57455549999442369633969695",
    "39992999398997379937469999", "66871789499486659647663979", "37752679399459369855569969",
    "25882889499557239857579989", "48433438496776459833659989", "66437669696542549255466799",
    "39763895499389349354389959", "79578699798576977578163999", "38552759397645379544677959",
    "49573695396767448742587959", "48572794399768359355687959", "55454679599343749442999999",
    "27982869299548578997999999", "29862996299775498368999999", "58483687497568729771889859",
    "64663689699643529743788698", "39990999599899699989969956",
)  # fmt: skip
_BITS = {
    chr(97 + row) + chr(97 + column): int(bits) for row, line in enumerate(_AFTER) for column, bits in enumerate(line)
}
# The same for what kind of character follows: a lower-case letter, a capital, a capital after a capital (B), a digit
# (0), and the beginning of a word ("").
_TURNS = {
    "a": {"a": 0, "A": 5, "0": 7},
    "A": {"a": 0, "B": 3, "0": 6},
    "B": {"a": 2, "B": 1, "0": 6},
    "0": {"a": 3, "A": 3, "0": 3},
    "": {"a": 0, "A": 2, "0": 4},
}
_BITS_OF_A_DIGIT = 3
_BITS_OF_A_FIRST_LETTER = 4
_BITS_OF_A_SEPARATOR = 3
# What a character costs that was drawn by lot (from all letters and digits; from those of one case; from the lower-case
# letters), and by how many bits that must be the better explanation.
_BY_LOT = ((6.0, 29.0), (5.0, 31.0), (4.7, 20.0))
# A word of many letters with digits in several places is no name, wherever its letters stand.
_SCATTERED = re.compile(r"(?=[A-Za-z0-9]{14})[A-Za-z]*(?:\d+[A-Za-z]+){3}\d")


def is_suspicious(text: str, organizations: Collection[str] = ()) -> bool:
    """Tell whether a text could be private.

    Args:
        text: What is about to leave the machine.
        organizations: Whose models may be named, as in ``organization/name``.
    """
    return why_suspicious(text, organizations) is not None


def why_suspicious(text: str, organizations: Collection[str] = ()) -> str | None:
    """Say what a text looks like if it could be private, in words of ours: never a part of the text."""
    # A subclass may answer one thing here and write another into the report.
    if type(text) is not str:
        return "object"
    if text == REDACTED:
        return None
    if len(text) > _MOST_CHARACTERS:
        return "long text"
    # A full-width slash is a slash; and one character can become eighteen.
    written, text = text, unicodedata.normalize("NFKC", text)
    if len(text) > _MOST_CHARACTERS:
        return "long text"
    if "/" in text or "\\" in text:
        organization, _, name = text.partition("/")
        listed = {str(one).casefold() for one in organizations}
        if written != text or organization.casefold() not in listed or not _TAME_NAME.fullmatch(name):
            return "path"
        text = name
    text = _UNNAMED.sub(r"\1", text)
    if not _TAME.fullmatch(text):
        return "character"
    for what, look in _looks():
        if look.search(text):
            return what
    if _is_prose(text):
        return "sentence"
    if _SCATTERED.search(text) or _is_by_lot(text):
        return "random"
    return None


def caught(value: Any, organizations: Collection[str] = ()) -> Any:
    """Return a value as JSON knows it, with everything that could be private replaced by ``[redacted]``.

    Dictionaries and lists are copied, their keys looked at as well; keys that are replaced become one, and the first
    keeps its value. Texts are looked at; whole numbers of 64 bits, booleans and None pass, and so do floats: NaN and
    infinities, which JSON does not know, are for the caller to handle. Anything else (tuples, sets, bytes, paths,
    subclasses of all these) is replaced as a whole, and so is what lies too deep. What exceeds 5,000 values is cut off.

    Args:
        value: What is about to leave the machine.
        organizations: Whose models may be named, as in ``organization/name``.
    """
    return _Walk(organizations).copy(value, 0)


class _Walk:
    """One way through a value, which may be larger than memory or contain itself."""

    def __init__(self, organizations: Collection[str]) -> None:
        self._organizations = tuple(organizations)
        self._num_left = _MOST_VALUES

    def copy(self, value: Any, level: int) -> Any:
        kind = type(value)
        if kind is str:
            return REDACTED if _is_known_suspicious(value, self._organizations) else value
        if value is None or kind is bool or kind is float:
            return value
        if kind is int:
            # A longer number could spell a text, and json refuses the longest.
            return value if -(2**63) <= value < 2**63 else REDACTED
        if level >= _MOST_LEVELS or (kind is not dict and kind is not list):
            return REDACTED
        return self._copy_dict(value, level) if kind is dict else self._copy_list(value, level)

    def _copy_list(self, values: list[Any], level: int) -> list[Any]:
        copies = []
        for value in values:
            if self._num_left == 0:
                break
            self._num_left -= 1
            copies.append(self.copy(value, level + 1))
        return copies

    def _copy_dict(self, values: dict[Any, Any], level: int) -> dict[str, Any]:
        copies: dict[str, Any] = {}
        # Taken at once: another thread may be adding to it.
        for key, value in list(islice(values.items(), self._num_left)):
            if self._num_left == 0:
                break
            self._num_left -= 1
            name = REDACTED if type(key) is not str or _is_known_suspicious(key, self._organizations) else key
            if name not in copies:
                copies[name] = self.copy(value, level + 1)
        return copies


@functools.lru_cache(maxsize=1024)
def _is_known_suspicious(text: str, organizations: tuple[str, ...]) -> bool:
    """The same texts come again and again: names of fields, words of lists."""
    return is_suspicious(text, organizations)


@functools.cache
def _looks() -> list[tuple[str, re.Pattern[str]]]:
    # Made when first needed: where nothing is reported, importing costs nothing.
    return [(what, re.compile(look)) for what, look in _LOOKS.items()]


def _is_prose(text: str) -> bool:
    words = text.split()
    if len(words) < 2:
        return False
    num_lower = sum(word[0].islower() for word in words)
    if _MAKERS.search(text):
        return len(words) > _MOST_WORDS_OF_DEVICES or (len(words) > _MOST_WORDS and num_lower > 1)
    has_capital = any(character.isupper() for character in text)
    has_digit = any(character.isdigit() for character in text)
    return len(words) > _MOST_WORDS or (has_capital and not has_digit)


def _is_by_lot(text: str) -> bool:
    """Tell random characters from a name, however short the part of the text that they fill.

    Two stories are compared: somebody chose the letters as in other names, or they were drawn by lot. Each character
    speaks for one of them by some bits; the part where most of them speak for the lot decides.
    """
    (any_lot, any_limit), (case_lot, case_limit), (lower_lot, lower_limit) = _BY_LOT
    any_sum = case_sum = lower_sum = 0.0
    before, kind, case = "", "", ""
    for character in text:
        if not character.isalnum():
            # A token may hold dashes; a dot or a space ends it.
            loss = _BITS_OF_A_SEPARATOR if character in "-_" else any_limit + case_limit + lower_limit
            any_sum, case_sum, lower_sum = (
                max(0.0, any_sum - loss),
                max(0.0, case_sum - loss),
                max(0.0, lower_sum - loss),
            )
            kind = ""
            continue
        letter = character.lower()
        now = "0" if character.isdigit() else "a" if character == letter else "A"
        turn = "B" if now == "A" and kind in ("A", "B") else now
        bits = _TURNS[kind][turn]
        if now == "0":
            bits += _BITS_OF_A_DIGIT
        else:
            bits += _BITS[before + letter] if kind in ("a", "A", "B") else _BITS_OF_A_FIRST_LETTER
            if case and case != now:
                case_sum = 0.0
            case = now
        any_sum = max(0.0, any_sum + bits - any_lot)
        case_sum = max(0.0, case_sum + bits - case_lot)
        lower_sum = max(0.0, lower_sum + bits - lower_lot) if now == "a" else 0.0
        if any_sum >= any_limit or case_sum >= case_limit or lower_sum >= lower_limit:
            return True
        before, kind = letter, turn
    return False
