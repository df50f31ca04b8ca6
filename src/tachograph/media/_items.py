"""Builds the items of a `media` record from snapshots, and stores their files. Called by the media thread.

An item that cannot be built does not fail its record: it has a `problem` instead of data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tachograph.media._audio import encode_wave, wave_facts
from tachograph.media._curves import confusion_matrix, precision_recall
from tachograph.media._pictures import (
    EncodedPicture,
    encode_array,
    encode_clip,
    encode_mask,
    encode_pil,
    is_array_mode,
    size_of_file,
    sniff,
)
from tachograph.media._pixels import MAX_PIXELS, class_numbers, frames_of, pictures_of
from tachograph.media._points import encode_points, parse_rows
from tachograph.media._snapshots import ArrayCopy, FileAt, SnapshotError, is_pil_image, with_usual_dtype
from tachograph.media._store import MediaStore, StoredFile, has_file_changed, open_user_file_to_read
from tachograph.media._tables import table_fields
from tachograph.media._values import (
    Audio,
    ConfusionMatrix,
    File,
    Html,
    Image,
    Markdown,
    MediaValue,
    Plotly,
    Points,
    PRCurve,
    Table,
    Text,
    Video,
)
from tachograph.records import ValueProblem, mask_text, to_plain

__all__ = ["MAX_CALL_BYTES", "ItemBuilder", "read_array"]

MAX_ITEMS = 64
MAX_CALL_BYTES = 100 << 20
MAX_INLINE_BYTES = 64 << 10
_MAX_FRAMES = 2_000
_MAX_PROBLEM_CHARS = 500
_HEADER_BYTES = 16
_PICTURE_EXTS = {"png", "jpg", "gif", "webp"}
_VIDEO_EXTS = {"mp4", "webm", "gif", "webp"}
_AUDIO_EXTS = {"wav", "mp3", "flac", "ogg"}

Item = dict[str, Any]


class ItemBuilder:
    """Turns snapshots into items, and notes the files that they refer to."""

    def __init__(self, store: MediaStore, has_room: Callable[[int], bool] = lambda _num_bytes: True) -> None:
        """Create a builder.

        Args:
            store: takes the files.
            has_room: returns whether a file of a size may be stored without removing others.
        """
        self._store = store
        self._has_room = has_room
        self.num_dropped = 0
        """Pictures of batches beyond the limit of a call."""
        self.files: list[StoredFile] = []
        """The files of the items that were built."""

    def build(self, value: MediaValue) -> list[Item]:
        """Return the items of a snapshot: one, or several for a batch of pictures.

        Raises:
            OSError: if a file cannot be written.
        """
        try:
            items = self._build(value)
        except SnapshotError as error:
            items = [{"problem": str(error)}]
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - data of any library; the other items are stored
            items = [{"problem": f"{type(error).__name__}: {error}"[:_MAX_PROBLEM_CHARS]}]
        for number, item in enumerate(items):
            caption = value.caption
            if caption is not None and not isinstance(caption, str):
                caption = caption[number] if number < len(caption) else None
            if caption is not None:
                item["caption"] = caption
            if value.meta:
                item["meta"] = dict(value.meta)
        return items

    def _build(self, value: MediaValue) -> list[Item]:
        if isinstance(value, Image):
            return self._images(value)
        if isinstance(value, (Text, Markdown)):
            return [self._text(value.data, "md" if isinstance(value, Markdown) else "txt")]
        if isinstance(value, Table):
            return [table_fields(value, self._cell, self._add, MAX_INLINE_BYTES)]
        if isinstance(value, Html):
            return [self._html(value)]
        if isinstance(value, Plotly):
            return [self._add(mask_text(value.data).encode("utf-8", "replace"), "json").fields]
        if isinstance(value, Video):
            return [self._video(value)]
        if isinstance(value, Audio):
            return [self._audio(value)]
        if isinstance(value, Points):
            return [self._points(value)]
        if isinstance(value, ConfusionMatrix):
            return [confusion_matrix(read_array(value.data), read_array(value.y_pred), value.labels)]
        if isinstance(value, PRCurve):
            return [precision_recall(read_array(value.data), read_array(value.scores), value.labels)]
        if isinstance(value, File):
            return [self._file(value)]
        raise SnapshotError(f"{type(value).__name__} cannot be stored")

    def _add(self, data: bytes, ext: str) -> StoredFile:
        file = self._store.add(data, ext)
        self.files.append(file)
        return file

    # Pictures ------------------------------------------------------------------------------------------------------

    def _images(self, image: Image) -> list[Item]:
        items = self._pictures(image)
        if len(items) == 1 and "problem" not in items[0]:
            self._add_masks(items[0], image)
            if image.boxes:
                items[0]["boxes"] = to_plain(image.boxes, "boxes", [])
        elif image.masks or image.boxes:
            items[0]["problem"] = "masks and boxes belong to one picture, not to a batch"
        return items

    def _pictures(self, image: Image) -> list[Item]:
        data = image.data
        if isinstance(data, FileAt):
            if image.is_linked:
                item = self._encoded_file(data, _PICTURE_EXTS, _picture_size(data), is_linked=True)
                return [{**item, "lossy": item["ext"] == "jpg"}]
            return [{**self._picture_file(_read_file(data)), **_change_of(data)}]
        if isinstance(data, bytes):
            return [self._picture_file(data)]
        is_torch = isinstance(data, ArrayCopy) and data.is_torch
        if is_pil_image(data):
            if not is_array_mode(data):
                return [self._picture(encode_pil(data, lossless=image.lossless))]
            import numpy as np

            array = np.asarray(data)
        else:
            array = read_array(data)
        items = []
        pictures = pictures_of(array, is_torch=is_torch, layout=image.layout, value_range=image.range)
        self.num_dropped += max(len(pictures) - MAX_ITEMS, 0)
        for pixels in pictures[:MAX_ITEMS]:
            item = self._picture(encode_array(pixels.array, lossless=image.lossless))
            if pixels.num_clipped:
                item["clipped"] = pixels.num_clipped
            items.append(item)
        return items

    def _picture(self, picture: EncodedPicture) -> Item:
        file = self._add(picture.data, picture.ext)
        return {**file.fields, "width": picture.width, "height": picture.height, "lossy": picture.is_lossy}

    def _picture_file(self, data: bytes) -> Item:
        """Store an encoded picture as it is."""
        ext = sniff(data[:_HEADER_BYTES])
        size = size_of_file(data)
        if ext == "png" or ext in _PICTURE_EXTS:
            if size is None:
                raise SnapshotError(f"a {ext} file that cannot be decoded")
            if size[0] * size[1] > MAX_PIXELS:
                raise SnapshotError(f"a picture of {size[0]}×{size[1]} has more than {MAX_PIXELS // 10**6} megapixels")
            return {**self._add(data, ext).fields, "width": size[0], "height": size[1], "lossy": ext == "jpg"}
        if size is None:
            raise SnapshotError("a file of a type that Pillow does not know as a picture")
        return self._picture(encode_pil(_decode(data, size)))

    def _add_masks(self, item: Item, image: Image) -> None:
        """Add the masks of a picture to its item; one that cannot be stored does not take the picture with it."""
        sizes = {(item["height"], item["width"])}
        if isinstance(image.data, (FileAt, bytes)):
            sizes |= {(item["width"], item["height"])}  # turned, by the orientation in the file
        masks: dict[str, Item] = {}
        problems: list[str] = []
        for name, (data, labels) in image.masks.items():
            try:
                masks[name] = self._mask(data, labels, sizes)
            except SnapshotError as error:
                problems.append(f"mask {name!r:.80}: {error}")
        if masks:
            item["masks"] = masks
        if problems:
            item["problem"] = "; ".join(problems)[:_MAX_PROBLEM_CHARS]

    def _mask(self, data: Any, labels: Mapping[str, str], sizes: set[tuple[int, int]]) -> Item:
        import numpy as np

        numbers, num_unlabeled = class_numbers(np.asarray(data) if is_pil_image(data) else read_array(data))
        if numbers.shape not in sizes:
            height, width = numbers.shape
            raise SnapshotError(f"it is {width}×{height}, and the picture has another size")
        if num_unlabeled and "0" in labels:
            raise SnapshotError(f"{num_unlabeled} pixels are below 0, and 0 is the class {labels['0']!r:.80}")
        file = self._add(encode_mask(numbers).data, "png")
        return {**file.fields, "labels": dict(labels), **({"unlabeled": num_unlabeled} if num_unlabeled else {})}

    # Clips and sounds ----------------------------------------------------------------------------------------------

    def _video(self, video: Video) -> Item:
        if isinstance(video.data, (FileAt, bytes)):
            facts = {} if video.is_linked else {"fps": video.fps}
            return self._encoded_file(video.data, _VIDEO_EXTS, facts, is_linked=video.is_linked)
        data = video.data
        if isinstance(data, list):
            import numpy as np

            is_torch = bool(data) and isinstance(data[0], ArrayCopy) and data[0].is_torch
            array = np.stack([np.asarray(read_array(frame)) for frame in data]) if data else np.empty((0, 0, 0, 0))
        else:
            is_torch, array = isinstance(data, ArrayCopy) and data.is_torch, read_array(data)
        if array.ndim == 4 and array.shape[0] > _MAX_FRAMES:
            raise SnapshotError(f"a video of {array.shape[0]} frames is longer than {_MAX_FRAMES}; store it as a file")
        frames = frames_of(array, is_torch=is_torch, layout=video.layout, value_range=video.range)
        clip = encode_clip([frame.array for frame in frames], video.fps)
        num_clipped = sum(frame.num_clipped for frame in frames)
        return {
            **self._add(clip.data, clip.ext).fields,
            "fps": video.fps,
            "num_frames": len(frames),
            "width": clip.width,
            "height": clip.height,
            **({"clipped": num_clipped} if num_clipped else {}),
        }

    def _audio(self, audio: Audio) -> Item:
        if isinstance(audio.data, (FileAt, bytes)):
            item = self._encoded_file(audio.data, _AUDIO_EXTS, {}, is_linked=audio.is_linked)
            if item["ext"] == "wav":
                item |= wave_facts(self._store.read(item["sha256"], "wav") or b"")
            return item
        is_torch = isinstance(audio.data, ArrayCopy) and audio.data.is_torch
        sound = encode_wave(read_array(audio.data), audio.rate or 0, is_torch=is_torch, layout=audio.layout)
        facts = {"rate": audio.rate, "seconds": sound.seconds}
        return {
            **self._add(sound.data, "wav").fields,
            **facts,
            **({"clipped": sound.num_clipped} if sound.num_clipped else {}),
        }

    def _points(self, points: Points) -> Item:
        colors = None if points.colors is None else read_array(points.colors)
        data = points.data
        if isinstance(data, (FileAt, bytes)):
            change = _change_of(data) if isinstance(data, FileAt) else {}
            rows = parse_rows(data if isinstance(data, bytes) else _read_file(data))
        else:
            change, rows = {}, read_array(data)
        cloud = encode_points(rows, colors, points.labels)
        return {**self._add(cloud.data, "npy").fields, **cloud.fields, **change}

    def _encoded_file(self, data: FileAt | bytes, exts: set[str], facts: Item, *, is_linked: bool = False) -> Item:
        """Store an encoded file as it is, if its first bytes say that it is of an expected type."""
        header = data[:_HEADER_BYTES] if isinstance(data, bytes) else _read_file(data, _HEADER_BYTES)
        ext = sniff(header)
        if ext not in exts:
            raise SnapshotError(f"a file that is none of {', '.join(sorted(exts))}; store it with run.log_file()")
        if isinstance(data, bytes):
            return {**self._add(data, ext).fields, **facts}
        _check_file_size(data)
        file = (self._store.add_link(data, ext) if is_linked else None) or self._store.add_copy(data, ext)
        self.files.append(file)
        name = {"file_name": os.path.basename(data.path)} if is_linked else {}
        return {**file.fields, **facts, **name, **({"changed": True} if file.has_changed else {})}

    # Texts and files -----------------------------------------------------------------------------------------------

    def _text(self, text: str, ext: str) -> Item:
        data = text.encode("utf-8", "backslashreplace")
        if len(data) <= MAX_INLINE_BYTES:
            return {"text": text}
        return self._add(mask_text(data.decode()).encode(), ext).fields

    def _html(self, html: Html) -> Item:
        if isinstance(html.data, FileAt):
            return {**self._add(_read_file(html.data), "html").fields, **_change_of(html.data)}
        return self._add(html.data.encode("utf-8", "backslashreplace"), "html").fields

    def _file(self, file: File) -> Item:
        source: FileAt = file.data
        name = file.name or os.path.basename(source.path)
        ext = "".join(character for character in Path(source.path).suffix[1:9].lower() if character.isalnum()) or "bin"
        stored_file: StoredFile | None
        if file.keep:
            stored_file = self._store.add_copy(source, ext)
        else:
            # A large file, such as a checkpoint, would take its space after the program has deleted it.
            may_link = source.size_bytes <= MAX_CALL_BYTES and self._has_room(source.size_bytes)
            stored_file = self._store.add_link(source, ext) if may_link else None
        if stored_file is None:
            digest, num_bytes = self._store.hash_file(source.path)
            item: Item = {"bytes": num_bytes, "sha256": digest, "kept": False, **_change_of(source)}
        else:
            self.files.append(stored_file)
            item = {**stored_file.fields, **({"changed": True} if stored_file.has_changed else {})}
        return {**item, "file_name": name, **({} if file.keep else {"path": source.path})}

    def _cell(self, value: Any) -> Any:
        """Return a cell of a table as JSON: a scalar, or a reference to a file."""
        if isinstance(value, MediaValue):
            if isinstance(value, (Text, Markdown)):
                return value.data
            item = self.build(value)[0]
            has_content = not item.keys() <= {"problem", "caption", "meta"}
            return {"media": value.kind, **item} if has_content else item["problem"]
        if isinstance(value, ValueProblem):
            return value.reason
        return value


def read_array(data: Any) -> Any:
    """Return a snapshot as a numpy array.

    Raises:
        SnapshotError: if it is none.
    """
    import numpy as np

    if isinstance(data, ArrayCopy):
        return data.read()
    if isinstance(data, FileAt):
        raise SnapshotError(f"{data.path!r} is a file, not an array")
    if isinstance(data, str):
        raise SnapshotError(f"the text {data[:80]!r} is no array")
    if isinstance(data, list) and data and isinstance(data[0], ArrayCopy):
        return np.stack([part.read() for part in data])
    try:
        return with_usual_dtype(np.asarray(data))
    except (ValueError, TypeError) as error:
        raise SnapshotError(str(error)) from None


def _picture_size(file: FileAt) -> Item:
    """Return the width and height of the picture in a file.

    Raises:
        SnapshotError: if there is none, or if it is too large.
    """
    size = size_of_file(file.path)
    if size is None:
        raise SnapshotError("a picture that cannot be decoded")
    if size[0] * size[1] > MAX_PIXELS:
        raise SnapshotError(f"a picture of {size[0]}×{size[1]} has more than {MAX_PIXELS // 10**6} megapixels")
    return {"width": size[0], "height": size[1]}


def _change_of(file: FileAt) -> Item:
    """Return a mark if a file has changed since it was logged."""
    return {"changed": True} if has_file_changed(file) else {}


def _check_file_size(file: FileAt) -> None:
    if file.size_bytes > MAX_CALL_BYTES:
        raise SnapshotError(
            f"{file.path!r} has {file.size_bytes >> 20} MB, more than {MAX_CALL_BYTES >> 20}; record it with "
            "run.log_file(path), or with keep=False to store no copy"
        )


def _read_file(file: FileAt, num_bytes: int = -1) -> bytes:
    """Return the content of a file of the user, or its beginning.

    Raises:
        SnapshotError: if it is missing or too large.
    """
    if num_bytes < 0:
        _check_file_size(file)
    try:
        with open_user_file_to_read(file.path) as content:
            data = content.read(num_bytes if num_bytes >= 0 else MAX_CALL_BYTES + 1)
    except OSError as error:
        raise SnapshotError(f"cannot read {file.path!r}: {error.strerror}") from None
    if len(data) > MAX_CALL_BYTES:
        raise SnapshotError(f"{file.path!r} grew beyond {MAX_CALL_BYTES >> 20} MB")
    return data


def _decode(data: bytes, size: tuple[int, int]) -> Any:
    import io

    from PIL import Image as PillowImage

    if size[0] * size[1] > MAX_PIXELS:
        raise SnapshotError(f"a picture of {size[0]}×{size[1]} has more than {MAX_PIXELS // 10**6} megapixels")
    try:
        with PillowImage.open(io.BytesIO(data)) as image:
            image.load()
            return image.copy()
    except Exception as error:  # noqa: BLE001 - Pillow raises almost anything for a damaged file
        raise SnapshotError(f"a picture that cannot be decoded: {type(error).__name__}") from None
