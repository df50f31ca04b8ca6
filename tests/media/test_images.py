"""Images: from an array, a PIL image or a file to a file in the run folder."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import tachograph as tacho
from tachograph.testing import MemoryRun
from tests.conftest import lines_of
from tests.media.recording import content_of, picture_of, record, stored_files

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (300, 280, 3), dtype=np.uint8)


def items_of(image, **options):
    """Return the items of an image that a run in memory records."""
    run = MemoryRun(**options)
    run.log({"image": image}, step=1)
    return next(record["items"] for record in run.records if record["event"] == "media")


def test_a_list_is_one_record_with_captions_and_order(logs):
    pictures = [PHOTO, 255 - PHOTO]
    images = [tacho.Image(picture, caption=f"fox {n}", seed=n) for n, picture in enumerate(pictures)]
    (media,) = record(logs, lambda run: run.log({"samples": images}, step=7))
    assert media | {"items": 0, "time": 0} == {
        "event": "media",
        "time": 0,
        "global_step": 7,
        "name": "samples",
        "kind": "image",
        "items": 0,
        "num_dropped": 0,
    }
    for index, item in enumerate(media["items"]):
        assert (item["index"], item["caption"]) == (index, f"fox {index}")
        assert item["meta"] == {"seed": index, "prompt_id": index}
        assert item["lossy"] and item["ext"] == "webp"
        difference = np.asarray(picture_of(logs / "media", item).convert("RGB"), float) - pictures[index]
        assert abs(difference.mean()) < 4


def test_metrics_of_the_same_call_are_recorded_as_before(logs):
    def log(run):
        run.log({"train_loss": 0.5, "samples": tacho.Image(PHOTO), "val": {"x": 1.0, "y": tacho.Image(PHOTO)}}, step=3)
        run.log({"samples": tacho.Image(PHOTO)}, step=4)  # no step record

    media = record(logs, log)
    steps = [line for line in lines_of(logs / "media") if line["event"] == "step"]
    assert [(line["global_step"], line["train_loss"], line["val/x"]) for line in steps] == [(3, 0.5, 1.0)]
    assert {"samples", "val", "val/y"}.isdisjoint(steps[0])
    assert [(line["name"], line["global_step"]) for line in media] == [("samples", 3), ("val/y", 3), ("samples", 4)]
    assert len(stored_files(logs / "media")) == 1  # equal pictures are one file


def test_media_without_a_step_belongs_to_the_latest_step(logs):
    def log(run):
        run.log({"a": tacho.Text("first")})
        for _ in range(3):
            run.log({"train_loss": 1.0})  # steps 0, 1, 2
        run.log({"a": tacho.Text("second")})
        run.log({"train_loss": 1.0})  # step 3: media did not count
        run.log({"a": tacho.Text("third")}, step=9)
        run.log({"train_loss": 1.0})
        run.log({"global_step": 11, "a": tacho.Text("fourth")})
        run.log_validation({"loss": 2.0, "a": tacho.Text("fifth")}, step=12)

    media = record(logs, log)
    steps = [line["global_step"] for line in lines_of(logs / "media") if line["event"] == "step"]
    assert steps == [0, 1, 2, 3, 9]
    assert [line["global_step"] for line in media] == [0, 2, 9, 11, 12]
    assert media[-1]["name"] == "val_a"


def test_the_caller_may_change_its_data_at_once(logs):
    arrays = [np.full((64, 64, 3), 200, np.uint8) for _ in range(30)]
    picture = Image.new("RGB", (64, 64), (10, 20, 30))

    def log(run):
        for step, array in enumerate(arrays):
            run.log({"image": tacho.Image(array), "pil": picture}, step=step)
            array[:] = 0
            picture.paste((0, 0, 0), (0, 0, 64, 64))
            picture.paste((10, 20, 30), (0, 0, 64, 64))

    for line in record(logs, log):
        expected = (200, 200, 200) if line["name"] == "image" else (10, 20, 30)
        assert picture_of(logs / "media", line["items"][0]).convert("RGB").getpixel((5, 5)) == expected


def test_layout_follows_the_library_unless_it_is_stated():
    cases = [
        (np.zeros((8, 6, 3), np.uint8), None, [(6, 8)]),
        (np.zeros((8, 6), np.uint8), None, [(6, 8)]),
        (np.zeros((8, 6, 1), np.uint8), None, [(6, 8)]),
        (np.zeros((8, 6, 4), np.uint8), None, [(6, 8)]),
        (np.zeros((3, 8, 6), np.uint8), "CHW", [(6, 8)]),
        (np.zeros((2, 8, 6, 3), np.uint8), None, [(6, 8)] * 2),
        (np.zeros((2, 3, 8, 6), np.uint8), "NCHW", [(6, 8)] * 2),
        (np.zeros((1, 1, 1), bool), None, [(1, 1)]),
    ]
    for array, layout, sizes in cases:
        items = items_of(tacho.Image(array, layout=layout))
        assert [(item["width"], item["height"]) for item in items] == sizes, (array.shape, layout)


def test_odd_shapes_are_recorded_as_problems():
    for array in (
        np.zeros((3, 8, 6), np.uint8),
        np.zeros((8, 6, 2)),
        np.zeros(5),
        np.zeros((0, 6, 3)),
        np.zeros((1, 2, 3, 4, 5)),
        np.zeros((4, 4), complex),
        np.array([["a", "b"]]),
        np.array(3.0),
        np.array([[object()]]),
    ):
        (item,) = items_of(tacho.Image(array))
        assert item["problem"], array.shape
        assert "sha256" not in item


def test_range_is_decided_by_the_dtype_and_never_by_the_values(logs):
    cases = {
        "half": (np.full((4, 4), 0.5), {}, 128, None),
        "above": (np.full((4, 4), 200.0), {}, 255, 16),
        "bright": (np.full((4, 4), 200.0), {"range": (0, 255)}, 200, None),
        "signed": (np.full((4, 4), 0.0, np.float32), {"range": (-1, 1)}, 128, None),
        "nan": (np.full((4, 4), np.nan, np.float16), {}, 0, 16),
        "bool": (np.ones((4, 4), bool), {}, 255, None),
        "int": (np.full((4, 4), 200, np.int64), {}, 200, None),
        "large": (np.full((4, 4), 70_000, np.int32), {}, 255, 16),
        "flat": (np.full((4, 4), 7.0), {"range": "minmax"}, 0, None),
    }
    media = record(
        logs,
        lambda run: run.log({name: tacho.Image(array, **options) for name, (array, options, *_) in cases.items()}),
    )
    for line in media:
        *_, value, clipped = cases[line["name"]]
        item = line["items"][0]
        assert picture_of(logs / "media", item).getpixel((1, 1)) == value, line["name"]
        assert item.get("clipped") == clipped, line["name"]


def test_masks_and_boxes_are_stored_beside_the_picture(logs):
    mask = np.arange(64 * 64).reshape(64, 64) % 5
    boxes = [{"x": 1, "y": 2.5, "width": 10, "height": 4, "label": "fox", "score": np.float32(0.5)}]
    image = tacho.Image(
        PHOTO[:64, :64], masks={"truth": mask, "wide": {"data": mask * 300, "labels": {300: "fox"}}}, boxes=boxes
    )
    (media,) = record(logs, lambda run: run.log({"pred": image}))
    item = media["items"][0]
    assert item["boxes"] == [{**boxes[0], "score": 0.5}]
    for name, factor in (("truth", 1), ("wide", 300)):
        data = content_of(logs / "media", item["masks"][name])
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), mask * factor)
    assert item["masks"]["wide"]["labels"] == {"300": "fox"}


def test_a_mask_that_does_not_fit_is_left_out_and_told(logs):
    picture = np.zeros((16, 8, 3), np.uint8)
    good, ignored = np.ones((16, 8), np.uint8), np.ones((16, 8), int)
    ignored[:2] = -1
    ignored[2] = -100
    masks = {
        "good": good,
        "ignored": ignored,
        "small": good[:4, :4],
        "turned": good.T,
        "float": good * 0.5,
        "named": {"data": ignored, "labels": {0: "road"}},
    }
    table = tacho.Table(rows=[{"picture": tacho.Image(picture, masks=masks)}])
    lines = record(logs, lambda run: run.log({"pred": tacho.Image(picture, masks=masks), "table": table}))
    items = {line["name"]: line["items"][0] for line in lines if line["event"] == "media"}
    for item in (items["pred"], items["table"]["rows"][0]["picture"]):
        assert picture_of(logs / "media", item).size == (8, 16)
        assert list(item["masks"]) == ["good", "ignored"] and item["masks"]["ignored"]["unlabeled"] == 24
        stored = np.asarray(Image.open(io.BytesIO(content_of(logs / "media", item["masks"]["ignored"]))))
        assert np.array_equal(stored, np.maximum(ignored, 0))
        for name, reason in {"small": "4×4", "turned": "16×8", "float": "float64", "named": "'road'"}.items():
            assert f"mask '{name}'" in item["problem"] and reason in item["problem"]
    (error,) = [line for line in lines if line["event"] == "telemetry_error"]
    assert error["kind"] == "media_not_stored" and error["field"] == "pred"


@pytest.mark.parametrize(
    ("name", "options", "frame", "ext"),
    [
        ("x.gif", {}, 1, "png"),
        ("x.png", {}, 1, "png"),
        ("x.webp", {"lossless": True}, 1, "png"),
        ("x.gif", {}, 0, "gif"),
    ],
)
def test_the_frame_of_a_picture_is_stored(logs, tmp_path, name, options, frame, ext):
    colors = [(255, 0, 0), (0, 0, 255)]
    first, *others = (Image.new("RGB", (8, 8), color) for color in colors)
    first.save(tmp_path / name, save_all=True, append_images=others, **options)

    def log(run):
        with Image.open(tmp_path / name) as picture:
            picture.seek(frame)
            run.log({"x": picture})

    (media,) = record(logs, log)
    (item,) = media["items"]
    assert item["ext"] == ext
    assert picture_of(logs / "media", item).convert("RGB").getpixel((0, 0)) == colors[frame]


def test_encoding_follows_the_content():
    smooth = np.linspace(0, 1, 300 * 300 * 3).reshape(300, 300, 3)
    flat = np.zeros((300, 300, 3), np.uint8)
    cases = [
        (tacho.Image(PHOTO), "webp"),
        (tacho.Image(smooth), "webp"),
        (tacho.Image(PHOTO, lossless=True), "png"),
        (tacho.Image(flat), "png"),
        (tacho.Image(PHOTO[:256, :256]), "png"),
        (tacho.Image(Image.fromarray(PHOTO).convert("P")), "png"),
        (tacho.Image(Image.fromarray(PHOTO).convert("CMYK")), "webp"),
        (tacho.Image(Image.fromarray(PHOTO).convert("LA")), "png"),
        (tacho.Image(Image.fromarray(PHOTO).convert("I")), "png"),
        (tacho.Image(np.concatenate([PHOTO, PHOTO[..., :1]], axis=2)), "webp"),
    ]
    for image, ext in cases:
        (item,) = items_of(image)
        assert (item["ext"], item["lossy"]) == (ext, ext == "webp"), image


def test_a_file_is_stored_as_it_is(logs, tmp_path):
    path = tmp_path / "fox.txt"  # the first bytes decide, not the name
    Image.fromarray(PHOTO).save(path, "jpeg")
    (tmp_path / "fox.bmp").write_bytes(b"")
    Image.fromarray(PHOTO).save(tmp_path / "fox.bmp")
    (tmp_path / "text.png").write_text("no picture")

    def log(run):
        run.log({"path": tacho.Image(path), "str": tacho.Image(str(path)), "bytes": tacho.Image(path.read_bytes())})
        with Image.open(path) as lazy:
            run.log({"lazy": lazy, "bmp": tacho.Image(tmp_path / "fox.bmp")})
        run.log({"text": tacho.Image(tmp_path / "text.png"), "none": tacho.Image(tmp_path / "none.png")})

    media = {line["name"]: line["items"][0] for line in record(logs, log) if line["event"] == "media"}
    for name in ("path", "str", "bytes", "lazy"):
        assert content_of(logs / "media", media[name]) == path.read_bytes()
        assert media[name]["ext"] == "jpg"
    assert picture_of(logs / "media", media["bmp"]).format == "WEBP"
    assert "cannot be decoded" in media["text"]["problem"] or "does not know" in media["text"]["problem"]
    assert "none.png" in media["none"]["problem"]


def test_a_bare_array_is_no_picture(logs):
    lines = record(logs, lambda run: run.log({"train_loss": 1.0, "array": PHOTO}, step=1))
    assert [line["event"] for line in lines] == ["telemetry_error"]
    assert not (logs / "media" / "media").exists()


def test_wrong_options_raise_in_the_constructor():
    box = {"x": 1, "y": 2, "width": 3, "height": 4}
    cases = [
        (TypeError, lambda: tacho.Image(None)),
        (TypeError, lambda: tacho.Image([1, 2])),
        (TypeError, lambda: tacho.Image(PHOTO, caption=3)),
        (TypeError, lambda: tacho.Image(PHOTO, seed=[1])),
        (ValueError, lambda: tacho.Image(PHOTO, layout="WHC")),
        (ValueError, lambda: tacho.Image(PHOTO, range=(1, 0))),
        (ValueError, lambda: tacho.Image(PHOTO, range="auto")),
        (TypeError, lambda: tacho.Image(PHOTO, masks=[1])),
        (TypeError, lambda: tacho.Image(PHOTO, masks={"a": 3})),
        (ValueError, lambda: tacho.Image(PHOTO, boxes=[{"x": 1}])),
        (ValueError, lambda: tacho.Image(PHOTO, boxes=[{**box, "colour": 1}])),
        (TypeError, lambda: tacho.Image(PHOTO, lossless=1)),
        (TypeError, lambda: tacho.Video(PHOTO, fps="16")),
        (ValueError, lambda: tacho.Video(PHOTO, fps=0)),
        (ValueError, lambda: tacho.Video(PHOTO, layout="HWC")),
        (TypeError, lambda: tacho.Audio(np.zeros(5))),
        (ValueError, lambda: tacho.Audio(np.zeros(5), rate=-1)),
        (TypeError, lambda: tacho.Text(3)),
        (TypeError, lambda: tacho.Html(3)),
        (TypeError, tacho.Table),
        (TypeError, lambda: tacho.Table(rows=[], data=[])),
        (TypeError, lambda: tacho.Table(data=[[1]])),
        (TypeError, lambda: tacho.Table(rows="abc")),
        (TypeError, tacho.Histogram),
        (TypeError, lambda: tacho.Histogram([1], counts=[1], edges=[0, 1])),
        (ValueError, lambda: tacho.Histogram([1], bins=513)),
        (ValueError, lambda: tacho.Histogram(counts=[1], edges=[0])),
        (TypeError, lambda: tacho.Histogram([1], colour="red")),
        (TypeError, lambda: tacho.ConfusionMatrix([1], None)),
        (TypeError, lambda: tacho.PRCurve([1], [1], labels="ab")),
        (TypeError, lambda: tacho.File(3)),
    ]
    for error, make in cases:
        with pytest.raises(error):
            make()
