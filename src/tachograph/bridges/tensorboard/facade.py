"""`SummaryWriter` with the interface of `torch.utils.tensorboard`, which records into a run and writes no event files.

The first writer starts a run named after its folder, or joins the run that is being recorded. Writers opened while
another one is open join its run; their tags get the name of their folder as a prefix. The run ends with the last
writer. Scalars, text, histograms, hyperparameters, pictures, figures, clips, sounds and the points of meshes are
recorded. Graphs and the like are only counted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tachograph._base.guard import guard, reraise_from_signal_handler
from tachograph._base.settings import Settings
from tachograph._init import init
from tachograph.bridges.drop_in import UnrecordedCalls, as_scalar, histogram, log_histogram, run_to_join
from tachograph.bridges.tensorboard.media_values import clips, figures, pictures, points, sound
from tachograph.recorder import DisabledRun, Run
from tachograph.records import SPLIT_FOLDERS, suggest_run_name

if TYPE_CHECKING:
    from tachograph.media import MediaValue

__all__ = ["GlobalSummaryWriter", "RunWriter", "SummaryWriter"]

_NUM_BINS = 64
_NUMBERS = frozenset({float, int})

_lock = threading.RLock()


class _SharedRun:
    """The run of all writers that are open."""

    def __init__(self, folder: Path, name: str, *, resume: bool) -> None:
        is_split = folder.name.lower() in SPLIT_FOLDERS
        self.root = folder.parent if is_split else folder
        active_run = run_to_join()
        self.is_ours = active_run is None
        self.run = active_run or init(name or suggest_run_name(self.root.name) or "run", resume=resume)
        self.num_writers = 0
        self.not_recorded = UnrecordedCalls(self.run)

    def prefix_of(self, folder: Path) -> str:
        """Return the prefix of the tags of a writer."""
        if folder == self.root:
            return ""
        if folder.is_relative_to(self.root):
            return f"{folder.relative_to(self.root).as_posix()}/"
        return f"{folder.name}/"

    def release(self, error: BaseException | None) -> None:
        """Close one writer; end the run with the last one."""
        self.num_writers -= 1
        if self.num_writers == 0 and self.is_ours:
            self.run.__exit__(None if error is None else type(error), error, None)


_open_run: _SharedRun | None = None


def _count_calls(name: str) -> Callable[..., None]:
    """Return a method that counts its calls."""

    def method(self: SummaryWriter, *_arguments: Any, **_options: Any) -> None:
        """Count the call; this kind of data is not recorded."""
        self._count(name)

    method.__name__, method.__qualname__ = name, f"SummaryWriter.{name}"
    return method


class SummaryWriter:
    """Records scalars, texts, histograms, hyperparameters, pictures and sounds into a run; see the module.

    The arguments are those of `torch.utils.tensorboard.SummaryWriter` and of `tensorboardX.SummaryWriter`. `max_queue`,
    `flush_secs`, `filename_suffix` and `comet_config` have no effect: everything is written within a second.

    Args:
        log_dir: the last folder in it is the name of the run. Nothing is written there.
        comment: appended to the name if `log_dir` is not given.
        purge_step: continue the run of that name, if there is one, as if it had been stopped before this step.
        write_to_disk: whether anything is recorded.
        logdir: another name of `log_dir`.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
        write_to_disk: bool = True,
        logdir: str | os.PathLike[str] | None = None,
        comet_config: Mapping[str, Any] | None = None,
        **_options: Any,
    ) -> None:
        log_dir = log_dir or logdir
        if not log_dir:
            log_dir = os.path.join("runs", f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}{comment}")
        self.log_dir = os.fspath(log_dir)
        self.purge_step = purge_step
        self.max_queue = max_queue
        self.flush_secs = flush_secs
        self.filename_suffix = filename_suffix
        self._steps: dict[str, Iterator[int]] = {}
        self._name = ""
        self._shared_run: _SharedRun | None = None
        self._is_recorded = bool(write_to_disk)
        self._run = self._open(resume=purge_step is not None)

    def _open(self, *, resume: bool) -> Run:
        """Join the run of the open writers, or start one."""
        global _open_run  # noqa: PLW0603 - writers share a run, as event files share a folder
        if not self._is_recorded:
            self._prefix = ""
            return DisabledRun("disabled", settings=Settings(enabled=False), backend=None)
        folder = Path(os.path.abspath(self.log_dir))
        with _lock:
            if _open_run is None or _open_run.num_writers == 0 or _open_run.run.status != "running":
                _open_run = _SharedRun(folder, self._name, resume=resume)
            _open_run.num_writers += 1
            self._shared_run = _open_run
            self._prefix = _open_run.prefix_of(folder)
            self._name = _open_run.run.name
            return _open_run.run

    def _current_run(self) -> Run:
        """Return the run; continue it if it ended, because a writer can be used after `close`."""
        if self._shared_run is None and self._is_recorded:
            with guard("continuing a run"):
                self._run = self._open(resume=True)
        return self._run

    # Recorded data ---------------------------------------------------------------------------------------------------

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: Any = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
        display_name: str = "",
        summary_description: str = "",
    ) -> None:
        """Record a number. Without a step, the values of a tag are counted."""
        if type(scalar_value) not in _NUMBERS:
            scalar_value = as_scalar(scalar_value)
        run = self._run if self._shared_run is not None else self._current_run()
        if global_step is None:
            global_step = self._next_step(tag)
        values = {f"{self._prefix}{tag}": scalar_value}
        if walltime is not None:
            values["walltime"] = walltime
        run.log(values, global_step)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Record several numbers as `main_tag/name`."""
        with guard("recording scalars"):
            values = {f"{self._prefix}{main_tag}/{name}": as_scalar(value) for name, value in tag_scalar_dict.items()}
            if walltime is not None:
                values["walltime"] = walltime
            self._current_run().log(values, self._next_step(main_tag) if global_step is None else global_step)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """Record a text, which may be Markdown."""
        more = {} if walltime is None else {"walltime": walltime}
        step = self._next_step(tag) if global_step is None else global_step
        self._current_run().event("text", step=step, tag=f"{self._prefix}{tag}", text=text_string, **more)

    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Mapping[str, Any] | None = None,
        run_name: str | None = None,
        global_step: int | None = None,
        name: str | None = None,
    ) -> None:
        """Add hyperparameters to the run's config, and metrics to its summary."""
        with guard("recording hyperparameters"):
            run = self._current_run()
            run.update_config(hparam_dict)
            run.log_summary({name: as_scalar(value) for name, value in metric_dict.items()})

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: str = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Record the distribution of an array in bins of equal width; values that are not finite are counted."""
        with guard("recording a histogram"):
            counts, edges, num_not_finite = histogram(values, min(max_bins or _NUM_BINS, _NUM_BINS))
            self._add_histogram(tag, global_step, walltime, counts, edges, num_not_finite=num_not_finite)

    def add_histogram_raw(
        self,
        tag: str,
        min: float,  # noqa: A002 - the names of the original
        max: float,  # noqa: A002
        num: int,
        sum: float,  # noqa: A002
        sum_squares: float,
        bucket_limits: Iterable[float],
        bucket_counts: Iterable[float],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Record a distribution that is counted already."""
        with guard("recording a histogram"):
            self._add_histogram(tag, global_step, walltime, bucket_counts, [min, *bucket_limits])

    def _add_histogram(
        self,
        tag: str,
        global_step: int | None,
        walltime: float | None,
        counts: Iterable[float],
        edges: Iterable[float],
        **more: Any,
    ) -> None:
        if walltime is not None:
            more["walltime"] = walltime
        run, step = self._current_run(), self._next_step(tag) if global_step is None else global_step
        log_histogram(run, f"{self._prefix}{tag}", counts, edges, step=step, **more)

    def _next_step(self, tag: str) -> int:
        return next(self._steps.setdefault(tag, itertools.count()))

    # Media -----------------------------------------------------------------------------------------------------------

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Record a picture. Floats are from 0 to 1, bytes from 0 to 255."""
        self._add_media("add_image", tag, lambda: pictures(img_tensor, dataformats), global_step)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Record the pictures of a batch; see `add_image`."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)

    def add_image_with_boxes(
        self,
        tag: str,
        img_tensor: Any,
        box_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        rescale: float = 1,
        dataformats: str = "CHW",
        labels: Iterable[str] | None = None,
    ) -> None:
        """Record a picture with boxes, whose corners are in pixels: left, top, right and bottom."""
        self._add_media(
            "add_image_with_boxes", tag, lambda: pictures(img_tensor, dataformats, box_tensor, labels), global_step
        )

    def add_figure(
        self,
        tag: str,
        figure: Any,
        global_step: int | None = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """Record a figure of matplotlib, or several, and close them as the original does."""
        self._add_media("add_figure", tag, lambda: figures(figure), global_step)
        pyplot = sys.modules.get("matplotlib.pyplot")
        if close and pyplot is not None:
            for each in figure if isinstance(figure, list) else [figure]:
                pyplot.close(each)

    def add_video(
        self,
        tag: str,
        vid_tensor: Any,
        global_step: int | None = None,
        fps: float = 4,
        walltime: float | None = None,
    ) -> None:
        """Record clips: an array of clips × frames × channels × height × width."""
        self._add_media("add_video", tag, lambda: clips(vid_tensor, fps), global_step)

    def add_audio(
        self,
        tag: str,
        snd_tensor: Any,
        global_step: int | None = None,
        sample_rate: int = 44100,
        walltime: float | None = None,
    ) -> None:
        """Record a sound: samples from -1 to 1."""
        self._add_media("add_audio", tag, lambda: sound(snd_tensor, sample_rate), global_step)

    def add_pr_curve(
        self,
        tag: str,
        labels: Any,
        predictions: Any,
        global_step: int | None = None,
        num_thresholds: int = 127,
        weights: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Record precision over recall; weights are not considered."""

        def build() -> MediaValue:
            from tachograph.media import PRCurve

            return PRCurve(labels, predictions)

        self._add_media("add_pr_curve", tag, build, global_step)

    def add_mesh(
        self,
        tag: str,
        vertices: Any,
        colors: Any = None,
        faces: Any = None,
        config_dict: Any = None,
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Record the vertices of meshes as points: arrays of meshes × vertices × 3. Faces are not recorded."""
        self._add_media("add_mesh", tag, lambda: points(vertices, colors), global_step)

    def _add_media(self, method: str, tag: str, build: Callable[[], Any], global_step: int | None) -> None:
        """Record media. Data that cannot be recorded are counted; the calls of a program never raise."""
        try:
            media = build()
        except Exception as error:  # noqa: BLE001 - whatever was passed
            reraise_from_signal_handler(error)
            self._count(method, f"the data cannot be recorded: {error}")
            return
        step = self._next_step(tag) if global_step is None else global_step
        self._current_run().log({f"{self._prefix}{tag}": media}, step)

    # Data that are only counted --------------------------------------------------------------------------------------

    add_custom_scalars = _count_calls("add_custom_scalars")
    add_custom_scalars_marginchart = _count_calls("add_custom_scalars_marginchart")
    add_custom_scalars_multilinechart = _count_calls("add_custom_scalars_multilinechart")
    add_embedding = _count_calls("add_embedding")
    add_event = _count_calls("add_event")  # of `file_writer`, as the next one
    add_graph = _count_calls("add_graph")
    add_onnx_graph = _count_calls("add_onnx_graph")
    add_openvino_graph = _count_calls("add_openvino_graph")
    add_pr_curve_raw = _count_calls("add_pr_curve_raw")
    add_summary = _count_calls("add_summary")
    add_tensor = _count_calls("add_tensor")
    export_scalars_to_json = _count_calls("export_scalars_to_json")

    def _count(self, method: str, reason: str = "this kind of data is not recorded") -> None:
        self._current_run()
        if self._shared_run is not None:
            self._shared_run.not_recorded.count(method, reason)

    # The life of a writer ------------------------------------------------------------------------------------------

    @property
    def file_writer(self) -> SummaryWriter:
        """The writer itself: there are no event files."""
        return self

    @property
    def all_writers(self) -> dict[str, SummaryWriter]:
        """The writer itself, by its folder."""
        return {self.log_dir: self}

    @property
    def logdir(self) -> str:
        """The same as `log_dir`, as tensorboardX calls it."""
        return self.log_dir

    @contextlib.contextmanager
    def use_metadata(self, *, global_step: int | None = None, walltime: float | None = None) -> Iterator[SummaryWriter]:
        """Return the writer: the step concerns only `add_event`, which is not recorded."""
        yield self

    def get_logdir(self) -> str:
        """Return `log_dir` as it was given."""
        return self.log_dir

    def flush(self) -> None:
        """Wait until everything is on disk."""
        if self._shared_run is not None:
            self._run.flush()

    def close(self) -> None:
        """Close the writer; the run ends with the last one."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        with _lock:
            shared_run, self._shared_run = self._shared_run, None
            if shared_run is not None:
                shared_run.release(error)

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(error)


class RunWriter(SummaryWriter):
    """A writer that records into a run which others start and end; closing it changes nothing.

    Args:
        current_run: returns the run. Called when something is recorded.
    """

    def __init__(self, current_run: Callable[[], Run]) -> None:
        self._prefix = ""
        self._steps = {}
        self._shared_run = None
        self._find_run = current_run
        self._counted_run: Run | None = None
        self._not_recorded: UnrecordedCalls | None = None

    @property
    def log_dir(self) -> str:  # type: ignore[override]
        """The folder of the run."""
        return self._find_run().path or ""

    def _current_run(self) -> Run:
        return self._find_run()

    def _count(self, method: str, reason: str = "this kind of data is not recorded") -> None:
        run = self._find_run()
        if self._not_recorded is None or self._counted_run is not run:
            self._counted_run, self._not_recorded = run, UnrecordedCalls(run)
        self._not_recorded.count(method, reason)

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self._find_run().flush()


class GlobalSummaryWriter:
    """A writer that counts the steps of each tag itself and is shared by all modules, as that of tensorboardX.

    Takes the arguments of `SummaryWriter`. Only the process that opened it is recorded.
    """

    _shared_writer: GlobalSummaryWriter | None = None

    def __init__(
        self,
        logdir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
        write_to_disk: bool = True,
        log_dir: str | os.PathLike[str] | None = None,
        coalesce_process: bool = True,
        **options: Any,
    ) -> None:
        self.smw = SummaryWriter(
            log_dir, comment, purge_step, max_queue, flush_secs, filename_suffix, write_to_disk, logdir, **options
        )

    @classmethod
    def getSummaryWriter(cls) -> GlobalSummaryWriter:  # noqa: N802 - the name of the original
        """Return the writer of all modules; the first call opens it."""
        with _lock:
            if GlobalSummaryWriter._shared_writer is None:
                GlobalSummaryWriter._shared_writer = cls()
            return GlobalSummaryWriter._shared_writer

    def add_scalar(self, tag: str, scalar_value: Any, walltime: float | None = None) -> None:
        """Record a number at the next step of its tag."""
        self.smw.add_scalar(tag, scalar_value, walltime=walltime)

    def add_text(self, tag: str, text_string: str, walltime: float | None = None) -> None:
        """Record a text at the next step of its tag."""
        self.smw.add_text(tag, text_string, self.smw._next_step(f"text {tag}"), walltime)  # numbers have other steps

    def add_image(self, tag: str, img_tensor: Any, walltime: float | None = None, dataformats: str = "CHW") -> None:
        """Record a picture at the next step of its tag."""
        self.smw.add_image(tag, img_tensor, self.smw._next_step(f"image {tag}"), walltime, dataformats)

    @property
    def file_writer(self) -> SummaryWriter:
        """The writer that this one uses."""
        return self.smw

    def close(self) -> None:
        """Wait until everything is on disk, and close the writer."""
        self.smw.flush()
        self.smw.close()
