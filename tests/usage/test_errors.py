"""What is reported about an exception, and that the program never notices."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures as futures
import contextlib
import gc
import importlib
import json
import pickle
import sys
import threading
import weakref
import zlib

import numpy as np
import pytest

from tachograph.exceptions import ConfigError
from tachograph.usage import JsonLines, TelemetryManager, UsageConfig, send_errors
from tachograph.usage._config import KNOWN_PACKAGES
from tachograph.usage._folder import app_folder
from tachograph.usage._known_code import known_type_name, package_roots
from tachograph.usage._spool import read_events
from tests.conftest import HANG_S


class AcmeMergerError(ValueError):
    """A user exception."""


@pytest.fixture
def manager():
    return TelemetryManager.configure(UsageConfig(app="greyjacket"), choice="local")


@pytest.fixture
def reported(manager):
    """Return a function that shuts the manager down and returns the reported errors."""

    def read():
        manager.shutdown(HANG_S)
        return [
            kept.event["properties"] for kept in read_events(app_folder("greyjacket")) if kept.event["event"] == "error"
        ]

    return read


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A framework in a folder with a private name, whose modules raise in several ways."""
    root = tmp_path / "home" / "alice" / "acme_merger"
    (root / "greyjacket" / "loops").mkdir(parents=True)
    (root / "greyjacket" / "__init__.py").write_text("")
    (root / "greyjacket" / "loops" / "__init__.py").write_text("def top():\n    raise KeyError('secret')\n")
    (root / "greyjacket" / "train.py").write_text(
        "class StepError(RuntimeError):\n    pass\n\n"
        "def step(fail):\n    patients = '/home/alice/patients.jsonl'\n    return fail()\n\n"
        "def own(_=None):\n    raise StepError('secret of /home/alice')\n"
    )
    monkeypatch.syspath_prepend(str(root))
    yield importlib.import_module("greyjacket.train")
    for name in [name for name in sys.modules if name.split(".")[0] == "greyjacket"]:
        del sys.modules[name]


def raises(function, kind=Exception):
    with pytest.raises(kind) as error:
        function()
    return error.value


def test_exception_propagates_unchanged_and_is_reported_once(reported):
    original = ValueError("secret")

    @send_errors
    def fail():
        raise original

    assert raises(fail) is original
    assert str(original) == "secret"
    assert vars(original) == {}
    [error] = reported()
    assert error["type"] == "ValueError"
    assert set(error) == {"type", "frames"}


def test_successful_call_reports_nothing(reported):
    @send_errors
    def give(a, *, b):
        """Say it."""
        return a + b

    assert give(1, b=2) == 3
    assert (give.__name__, give.__doc__) == ("give", "Say it.")
    assert reported() == []


def test_known_frames_are_named_and_others_merged(package, reported):
    def fail():
        def deeper():
            raise AcmeMergerError("secret")

        deeper()

    error = raises(lambda: send_errors(package.step)(fail), AcmeMergerError)
    assert isinstance(error, AcmeMergerError)
    [error] = reported()
    assert error["function"] == "greyjacket.train.step"
    assert (error["type"], error["base"]) == ("user exception", "ValueError")
    assert error["frames"] == [
        {"module": "greyjacket.train", "function": "step", "line": 6},
        {"module": "other code"},
    ]


def test_types_of_known_packages_are_named(package, reported):
    raises(send_errors(package.own))
    [error] = reported()
    assert error["type"] == "greyjacket.train.StepError"


def test_forged_module_of_type_is_user_exception(reported):
    class Forged(RuntimeError):
        pass

    Forged.__module__ = "torch"
    renamed = type("OSError", (Exception,), {"__module__": "builtins"})
    for kind in (Forged, renamed):

        @send_errors
        def fail(kind=kind):
            raise kind("x")

        raises(fail)
    errors = reported()
    assert [error["type"] for error in errors] == ["user exception"] * 2
    assert [error["base"] for error in errors] == ["RuntimeError", "Exception"]


def pretend(kind, module, name=None):
    """Let a class claim a module and assign it there."""
    kind.__module__ = module
    kind.__qualname__ = kind.__name__ = name or kind.__name__
    setattr(sys.modules[module], kind.__name__, kind)
    return kind


class AcmeText(str):
    """A text that is printed as another one."""

    def __str__(self):
        return "acme_merger"

    __format__ = lambda self, _spec: "acme_merger"  # noqa: E731


def pretenders():
    """Return exceptions of a user that claim to be defined elsewhere, each with its nearest known base class."""

    class AcmeBare(RuntimeError):
        pass

    class AcmeMethods(LookupError):
        def __str__(self):
            return "x"

    class AcmeOther(AcmeBare):
        pass

    made_up = type(sys)("numpy.acme_merger")
    made_up.__file__ = np.__file__
    sys.modules["numpy.acme_merger"] = made_up
    sys.modules["json.acme_merger"] = made_up
    yield pretend(AcmeBare, "numpy.linalg"), "RuntimeError"
    yield AcmeOther, "RuntimeError"
    yield pretend(AcmeMethods, "numpy"), "LookupError"
    yield pretend(type("AcmeMade", (OSError,), {}), "builtins"), "OSError"
    yield pretend(type("AcmeMade", (OSError,), {}), "json"), "OSError"
    yield pretend(type("AcmeMade", (OSError,), {}), "json.decoder"), "OSError"
    yield pretend(type("AcmeMade", (OSError,), {}), "zlib"), "OSError"
    yield pretend(type("AcmeMade", (OSError,), {}), "greyjacket.train"), "OSError"
    yield pretend(type("AcmeMade", (np.linalg.LinAlgError,), {}), "numpy.linalg"), "numpy.linalg.LinAlgError"
    # A name that the package defines, in a module that does not exist; then in one that exists, for another class.
    yield pretend(type("LinAlgError", (OSError,), {}), "numpy.acme_merger"), "OSError"
    yield pretend(type("JSONDecodeError", (OSError,), {}), "json.acme_merger"), "OSError"
    yield pretend(type("AxisError", (OSError,), {"__str__": AcmeMethods.__str__}), "numpy.exceptions"), "OSError"
    yield pretend(type("AxisError", (OSError,), {"x": property(lambda self: 1)}), "numpy.exceptions"), "OSError"
    text = type("AcmeText", (OSError,), {"__module__": AcmeText("json.decoder")})
    json.decoder.AcmeText = text
    yield text, "OSError"


def test_type_is_named_only_where_its_source_defines_it(package, reported):
    modules = [np, np.linalg, np.exceptions, builtins, json, json.decoder, zlib]
    before = [(module, dict(vars(module))) for module in modules]
    wanted = []
    try:
        for kind, base in pretenders():
            wanted.append({"type": "user exception", "base": base})

            @send_errors
            def fail(kind=kind):
                try:
                    raise kind("x")
                except kind as cause:
                    raise kind("y") from cause

            raises(fail)
    finally:
        for module, names in before:
            for name in set(vars(module)) - set(names):
                delattr(module, name)
            vars(module).update(names)
        for name in ("numpy.acme_merger", "json.acme_merger"):
            del sys.modules[name]
    errors = reported()
    assert [{name: error[name] for name in ("type", "base")} for error in errors] == wanted
    assert [error["causes"] for error in errors] == [["user exception"]] * len(wanted)


GENUINE = [
    "ValueError", "ExceptionGroup", "asyncio.exceptions.InvalidStateError", "binascii.Error", "ctypes.ArgumentError",
    "concurrent.futures._base.TimeoutError", "concurrent.futures.process.BrokenProcessPool", "decimal.InvalidOperation",
    "io.UnsupportedOperation", "json.decoder.JSONDecodeError", "numpy.exceptions.AxisError", "numpy.linalg.LinAlgError",
    "queue.Full", "shutil.SameFileError", "socket.gaierror", "sqlite3.OperationalError", "ssl.SSLError",
    "ssl.SSLCertVerificationError", "struct.error", "subprocess.CalledProcessError", "zipfile.BadZipFile", "zlib.error",
    "tachograph.exceptions.ConfigError", "tomllib.TOMLDecodeError", "urllib.error.HTTPError",
    "xml.parsers.expat.ExpatError",
]  # fmt: skip
GENUINE_OF_FRAMEWORKS = [
    "torch.AcceleratorError", "torch.OutOfMemoryError", "torch._C._LinAlgError", "torch.distributed.DistBackendError",
    "torch.cuda.CudaError", "huggingface_hub.errors.RepositoryNotFoundError",
    "huggingface_hub.errors.HfHubHTTPError", "safetensors._safetensors_rust.SafetensorError",
]  # fmt: skip


def check_genuine(names):
    loaded = []
    for name in names:
        module, _, attribute = name.rpartition(".")
        with contextlib.suppress(ImportError):  # an optional package, or Python 3.10
            loaded.append((name, getattr(importlib.import_module(module or "builtins"), attribute, None)))
    roots = package_roots(["tachograph"], KNOWN_PACKAGES)
    imported = set(sys.modules)
    for name, kind in loaded:
        if kind is not None and f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.") == name:
            assert known_type_name(kind, roots) == name
    assert set(sys.modules) == imported, "nothing is imported to check a type"
    return len(loaded)


def test_genuine_types_are_named():
    """Also those that C code defines, and those that a package moved to another of its modules."""
    assert check_genuine(GENUINE) > 20


@pytest.mark.xdist_group("torch")
def test_genuine_types_of_frameworks_are_named():
    pytest.importorskip("torch")
    assert check_genuine(GENUINE_OF_FRAMEWORKS) > 3


def test_types_of_standard_library_are_named(reported):
    @send_errors
    def fail():
        json.loads("{")

    raises(fail)
    assert reported()[0]["type"] == "json.decoder.JSONDecodeError"


def test_causes_are_reported_by_type(reported):
    @send_errors
    def fail():
        try:
            try:
                raise KeyError("secret")
            except KeyError as error:
                raise AcmeMergerError("secret") from error
        except AcmeMergerError:
            raise RuntimeError("secret")  # noqa: B904

    @send_errors
    def hidden():
        try:
            raise KeyError("secret")
        except KeyError:
            raise RuntimeError("secret") from None

    raises(fail)
    raises(hidden)
    first, second = reported()
    assert first["causes"] == ["user exception", "KeyError"]
    assert "causes" not in second


def test_cyclic_causes_terminate(reported):
    @send_errors
    def fail():
        first, second = ValueError("1"), KeyError("2")
        first.__cause__, second.__cause__ = second, first
        raise first

    raises(fail)
    assert reported()[0]["causes"] == ["KeyError"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups before Python 3.11")
def test_members_of_exception_group_are_reported_by_type(reported):
    @send_errors
    def fail():
        raise ExceptionGroup("secret", [ValueError("secret"), AcmeMergerError("secret")])  # noqa: F821

    raises(fail)
    [error] = reported()
    assert (error["type"], error["members"]) == ("ExceptionGroup", ["ValueError", "user exception"])


def test_innermost_watched_function_reports(package, reported):
    inner = send_errors(package.own)
    outer = send_errors(lambda: send_errors(package.step)(inner))
    raises(outer)
    [error] = reported()
    assert error["function"] == "greyjacket.train.own"


def test_each_failure_in_one_call_is_reported(reported):
    @send_errors
    def fail(number):
        raise ValueError(number)

    @send_errors
    def outer():
        for number in range(2):
            raises(lambda number=number: fail(number))
        raise KeyError("x")

    raises(outer)
    assert [error["type"] for error in reported()] == ["ValueError", "ValueError", "KeyError"]


def test_same_object_raised_in_two_calls_is_reported_twice(reported):
    error = ValueError("x")

    @send_errors
    def fail():
        raise error

    raises(fail)
    raises(fail)
    assert len(reported()) == 2


def test_threads_have_independent_chains(reported):
    barrier = threading.Barrier(2)

    @send_errors
    def fail():
        barrier.wait(HANG_S)
        raise ValueError("x")

    threads = [threading.Thread(target=lambda: raises(fail)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reported()) == 2


def test_coroutines_and_generators_are_watched(reported):
    @send_errors
    async def wait():
        await asyncio.sleep(0)
        raise ValueError("x")

    @send_errors
    def give():
        yield 1
        raise KeyError("x")

    @send_errors
    async def stream():
        yield 1
        raise IndexError("x")

    async def consume():
        async for _ in stream():
            pass

    raises(lambda: asyncio.run(wait()))
    raises(lambda: list(give()))
    raises(lambda: asyncio.run(consume()))
    assert [error["type"] for error in reported()] == ["ValueError", "KeyError", "IndexError"]


@pytest.mark.parametrize(
    "kind",
    [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, asyncio.CancelledError, futures.CancelledError],
)
def test_intended_ends_are_not_reported(reported, kind):
    @send_errors
    def stop():
        raise kind("secret")

    TelemetryManager.get_instance().send_error(raises(stop, kind))
    assert reported() == []


def test_reporting_keeps_nothing_alive(manager):
    class Tensor:
        pass

    @send_errors
    def fail():
        tensor = Tensor()
        kept.append(weakref.ref(tensor))
        raise ValueError("out of memory")

    @send_errors
    def outer():
        for _ in range(2):
            with contextlib.suppress(ValueError):
                fail()
        gc.collect()
        return [reference() for reference in kept]

    kept = []
    assert outer() == [None, None]


def test_reported_exception_can_be_pickled(manager):
    @send_errors
    def fail():
        raise ValueError("x")

    @send_errors
    def outer():
        return pickle.loads(pickle.dumps(raises(fail)))

    assert str(outer()) == "x"


@pytest.mark.expects_faults
@pytest.mark.parametrize("place", ["__str__", "__module__", "metaclass", "__dict__", "__traceback__"])
def test_hostile_exception_propagates_unchanged(manager, place):
    def boom(*_arguments):
        raise RuntimeError("while looking at it")

    meta = type("Meta", (type,), {"__mro__": property(boom)} if place == "metaclass" else {})
    hostile = meta("Hostile", (Exception,), {place: property(boom)} if place.startswith("__") else {})
    original = hostile()

    @send_errors
    def fail():
        raise original

    with pytest.raises(BaseException) as error:
        fail()
    assert error.value is original


@pytest.mark.expects_faults
def test_failing_report_does_not_mask_exception(manager, monkeypatch):
    def refuse(*_arguments):
        raise OSError("no disk")

    monkeypatch.setattr(manager, "_record", refuse)

    @send_errors
    def fail():
        raise ValueError("mine")

    assert str(raises(fail)) == "mine"


def test_unconfigured_or_off_just_calls_function():
    @send_errors
    def fail():
        raise ValueError("x")

    assert vars(raises(fail)) == {}
    TelemetryManager.configure(UsageConfig(app="greyjacket"), choice="off")
    assert vars(raises(fail)) == {}


def test_each_app_reports_its_own_functions(package, tmp_path):
    TelemetryManager.configure(UsageConfig(app="other", endpoint=JsonLines(tmp_path / "other")), choice="on")
    TelemetryManager.configure(UsageConfig(app="greyjacket", endpoint=JsonLines(tmp_path / "greyjacket")), choice="on")

    def mine():
        raise ValueError("x")

    raises(send_errors(package.own))
    raises(send_errors(app="other")(mine))
    raises(send_errors(mine))  # ambiguous: belongs to no app
    reported = {}
    for app in ("other", "greyjacket"):
        TelemetryManager.get_instance(app).shutdown(HANG_S)
        reported[app] = [json.loads(line)["properties"]["type"] for line in (tmp_path / app).read_text().splitlines()]
    assert reported == {"greyjacket": ["greyjacket.train.StepError"], "other": ["ValueError"]}


def test_user_module_with_known_name_is_not_named(tmp_path, monkeypatch, reported):
    """One has the name of a standard module, one that of a package that is known where it is installed."""
    (tmp_path / "chunk.py").write_text("class AcmeError(OSError):\n    pass\n\ndef fail():\n    raise AcmeError('x')\n")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    (tmp_path / "vllm" / "acme_merger.py").write_text((tmp_path / "chunk.py").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("chunk", "vllm", "vllm.acme_merger"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("chunk", "vllm.acme_merger"):
        module = importlib.import_module(name)
        raises(send_errors(module.fail))
        del sys.modules[name]
    del sys.modules["vllm"]
    for error in reported():
        assert error == {"type": "user exception", "base": "OSError", "frames": [{"module": "other code"}]}


@pytest.mark.parametrize("file", ["train.py", "acme_merger.py"])
def test_forged_file_name_of_code_is_not_named(package, reported, file):
    place = package.__file__.replace("train.py", file)
    namespace = {}
    exec(compile("def secret_deal():\n    raise ValueError", place, "exec"), namespace)
    raises(send_errors(namespace["secret_deal"]))
    assert reported() == [{"type": "ValueError", "frames": [{"module": "other code"}]}]


def test_package_without_distribution_is_not_known(tmp_path, monkeypatch, reported):
    folder = tmp_path / "site-packages" / "xformers"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "class AcmeError(OSError):\n    pass\n\ndef fail():\n    raise AcmeError('x')\n"
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    raises(send_errors(importlib.import_module("xformers").fail))
    del sys.modules["xformers"]
    assert reported() == [{"type": "user exception", "base": "OSError", "frames": [{"module": "other code"}]}]


def test_recursion_error_is_reported_by_outermost_call(reported):
    @send_errors
    def deeper():
        return deeper()

    raises(deeper, RecursionError)
    assert [error["type"] for error in reported()] == ["RecursionError"]


def test_class_and_static_methods_keep_their_kind(reported):
    class Trainer:
        @send_errors
        @classmethod
        def of_class(cls):
            raise KeyError(cls.__name__)

        @send_errors
        @staticmethod
        def of_nothing(value):
            raise IndexError(value)

        @classmethod
        @send_errors
        def inside(cls):
            return cls

    assert raises(Trainer.of_class).args == ("Trainer",)
    assert raises(lambda: Trainer().of_nothing(3)).args == (3,)
    assert Trainer().inside() is Trainer
    assert [error["type"] for error in reported()] == ["KeyError", "IndexError"]


@pytest.mark.parametrize("thing", [int, property(lambda self: 1), "train", type("Trainer", (), {})])
def test_decorating_a_non_function_raises(thing):
    with pytest.raises(ConfigError, match="for functions and methods"):
        send_errors(thing)


def test_stop_iteration_is_not_a_failure(reported):
    class Numbers:
        def __iter__(self):
            return self

        @send_errors
        def __next__(self):
            raise StopIteration

    assert list(Numbers()) == []
    assert reported() == []


def test_suspended_generator_does_not_keep_chain_open(reported):
    error = ValueError("x")

    @send_errors
    def give():
        yield 1
        yield 2

    @send_errors
    def fail():
        raise error

    resting = give()
    next(resting)
    raises(fail)
    raises(fail)
    resting.close()
    assert len(reported()) == 2


@pytest.mark.expects_faults
def test_error_near_recursion_limit_propagates(reported):
    @send_errors
    def fail(depth):
        if depth:
            return fail(depth - 1)
        raise KeyError("mine")

    kinds = set()
    for depth in range(sys.getrecursionlimit() // 4, sys.getrecursionlimit(), 7):
        kinds.add(type(raises(lambda depth=depth: fail(depth))))
    assert kinds <= {KeyError, RecursionError}
    assert KeyError in kinds


@pytest.mark.xdist_group("torch")
def test_frames_and_types_of_installed_packages(reported):
    torch = pytest.importorskip("torch")

    @send_errors
    def fail():
        torch.nn.Linear(2, 3)(torch.zeros(1, 5))

    @send_errors
    def fail_in_c():
        torch.linalg.inv(torch.zeros(2, 2))

    raises(fail)
    raises(fail_in_c)
    first, second = reported()
    assert first["type"] == "RuntimeError"
    modules = [frame["module"] for frame in first["frames"]]
    assert modules[0] == "other code"
    assert modules[-1] == "torch.nn.modules.linear"
    assert all(set(frame) == {"module", "function", "line"} for frame in first["frames"][1:])
    assert second["type"] == "torch._C._LinAlgError"
