"""Signal handlers that call the recorder again while their own thread is inside of it, at any line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tachograph
from tests.conftest import HANG_S, Script

_SWEEP = """
    import json, os, signal, sys, time, traceback
    import tachograph as tacho

    root, handler_kind = sys.argv[1:3]
    first_line, stride, hang_s = map(int, sys.argv[3:])
    NUM_STEPS = 50

    class Stop(Exception):
        pass

    EXCEPTIONS = (Stop, KeyboardInterrupt, TimeoutError)

    def start_run(name):
        return tacho.init(name, log_dir=root, console=False, git=False, code=False)

    def use(run):
        run.log({"loss": 1.0}, step=NUM_STEPS)
        run.event("checkpoint_loaded", a=1)
        with tacho.timed_span("work"):
            pass
        run.flush()
        run.finish()

    def interrupted(name, line_number):
        # Run `use` and send the signal at one of its lines; return the number of lines.
        run = start_run(name)
        for step in range(NUM_STEPS):
            run.log({"loss": 1.0}, step=step)

        def handle(number, frame):
            if handler_kind == "raise":
                raise EXCEPTIONS[line_number // stride % len(EXCEPTIONS)]("from the handler")
            if handler_kind == "log":
                run.log({"loss": 2.0}, step=NUM_STEPS + 1)
                run.event("signalled")
                run.flush()
            else:
                run.finish()
            if handler_kind == "exit":
                sys.exit(0)

        number = signal.SIGTERM if handler_kind == "terminate" else signal.SIGUSR1
        if handler_kind != "terminate":  # that one is the handler of the recorder
            signal.signal(number, handle)
        num_lines = 0

        def trace(frame, event, argument):
            nonlocal num_lines
            file = frame.f_code.co_filename
            if event == "line" and ("tachograph" in file or "threading" in file):
                num_lines += 1
                if num_lines == line_number:
                    sys.settrace(None)
                    print(file, frame.f_lineno, file=sys.stderr)
                    signal.raise_signal(number)
            return trace

        sys.settrace(trace)
        is_raised = False
        try:
            use(run)
        except EXCEPTIONS as error:
            is_raised = str(error) == "from the handler"
        sys.settrace(None)
        is_sent = 0 < line_number <= num_lines  # another time there may be fewer lines
        assert is_raised == (handler_kind == "raise" and is_sent), "the exception of the handler was suppressed"
        run.finish()
        return num_lines

    def start(line_number):
        name = f"run-{line_number}"
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(f"{root}/{name}.txt", os.O_CREAT | os.O_WRONLY), 2)
            code = 1
            try:
                num_lines = interrupted(name, line_number)
                if line_number == 0:
                    open(f"{root}/num_lines", "w").write(str(num_lines))
                code = 0
            except SystemExit:
                import atexit
                atexit._run_exitfuncs()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        return pid, name

    def problems_of(pid, name):
        deadline_s = time.monotonic() + hang_s
        problems = []
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            time.sleep(0.002)
            if time.monotonic() > deadline_s:
                os.kill(pid, signal.SIGKILL)
                problems.append("it did not end")
        code = os.waitstatus_to_exitcode(ended[1])
        records = [json.loads(line) for line in open(f"{root}/{name}/metrics.jsonl")]
        steps = [record["global_step"] for record in records if record["event"] == "step"]
        statuses = [record["status"] for record in records if record["event"] == "end"]
        is_terminated = handler_kind == "terminate" and os.path.getsize(f"{root}/{name}.txt") > 0  # a signal was sent
        if code != (-signal.SIGTERM if is_terminated else 0):
            problems.append(f"exit code {code}")
        if steps[:NUM_STEPS] != list(range(NUM_STEPS)):
            problems.append(f"only the steps {steps}")
        # A run that was finishing when the signal came has finished.
        if statuses not in ([["finished"], ["failed"]] if is_terminated else [["finished"]]):
            problems.append(f"the ends {statuses}")
        return [f"{name}: {problem}: {open(f'{root}/{name}.txt').read()}" for problem in problems]

    use(start_run("first"))  # what is imported on first use is imported now
    problems = problems_of(*start(0))
    num_lines = int(open(f"{root}/num_lines").read())
    for line_number in range(first_line, num_lines + 1, stride):
        problems += problems_of(*start(line_number))
    print(json.dumps({"num_lines": num_lines, "problems": problems}))
"""


@pytest.mark.parametrize(
    ("first_line", "stride"),
    [(7, 31), *(pytest.param(first_line, 8, marks=pytest.mark.long) for first_line in range(1, 9))],
)
@pytest.mark.parametrize("handler_kind", ["finish", "exit", "log", "terminate", "raise"])
def test_signal_at_any_line_loses_and_blocks_nothing(
    script: Callable[..., Script], logs: Path, handler_kind: str, first_line: int, stride: int
) -> None:
    logs.mkdir()
    process = script(_SWEEP, logs, handler_kind, first_line, stride, int(HANG_S))
    report = json.loads(process.ok().splitlines()[-1])
    assert report["num_lines"] > 100
    assert not report["problems"]


def test_signals_that_finish_the_run_again_and_again(script: Callable[..., Script], logs: Path) -> None:
    program = """
        import signal, sys, tachograph
        run = tachograph.init("timer", log_dir=sys.argv[1], git=False)
        signal.signal(signal.SIGALRM, lambda number, frame: run.finish())
        for step in range(1000):
            run.log({"loss": 1.0}, step=step)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        is_complete = run.finish()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert is_complete and run.status == "finished"
    """
    script(program, logs).ok()
    records = [json.loads(line) for line in (logs / "timer" / "metrics.jsonl").read_text().splitlines()]
    assert [record["global_step"] for record in records if record["event"] == "step"] == list(range(1000))
    assert [record["event"] for record in records].count("end") == 1


_FACADES = """
    import itertools, os, signal, sys, time, traceback

    root, hang_s = sys.argv[1], int(sys.argv[2])
    os.environ |= {"XDG_STATE_HOME": f"{root}/state", "XDG_CONFIG_HOME": f"{root}/config"}
    import tachograph.tensorboard as tensorboard, tachograph.wandb as wandb
    from tachograph._base.guard import guard
    from tachograph.usage import Count, TelemetryManager, UsageConfig

    class Stop(Exception):
        pass

    def use_wandb():
        run = wandb.init(project="p", config={"a": 1})
        wandb.log({"loss": 1.0})
        run.config.update({"b": 2})
        run.summary["best"] = 3
        run.log({"table": wandb.Table(columns=["a"], data=[[1]])})
        wandb.finish()

    def use_wandb_again():
        if wandb.run is not None:
            try:
                wandb.log({"again": 1.0})
            except wandb.Error:
                pass  # it was finishing
        wandb.finish()

    writers = []

    def use_tensorboard():
        writers.append(tensorboard.SummaryWriter("board"))
        writers[0].add_scalar("loss", 1.0, 1)
        writers[0].add_text("text", "x", 1)
        writers[0].add_hparams({"a": 1}, {"b": 2.0})
        writers[0].close()

    def use_tensorboard_again():
        for writer in writers:
            writer.add_scalar("again", 1.0, 2)
            writer.close()

    USAGE = UsageConfig(
        app="app", endpoint="http://127.0.0.1:9", api_key="phc_x", organizations=["google"], consent="opt-in",
        config_map={"base_model": "model.name"}, events={"packed": {"num_packs": Count("Packs.")}},
    )

    def use_usage():
        TelemetryManager.configure(USAGE, choice="on")
        manager = TelemetryManager.get_instance()
        manager.send_config({"model": {"name": "google/gemma"}})
        manager.send_event("packed", {"num_packs": 1})

    def use_usage_again():
        TelemetryManager.get_instance().send_event("packed", {"num_packs": 2})

    def interrupted(name, use, handler, line_number):
        os.makedirs(f"{root}/{name}", exist_ok=True)
        os.chdir(f"{root}/{name}")
        signal.signal(signal.SIGUSR1, handler)
        num_lines = 0

        def trace(frame, event, argument):
            nonlocal num_lines
            file = frame.f_code.co_filename
            if event == "line" and ("/tachograph/" in file or "threading" in file):
                num_lines += 1
                if num_lines == line_number:
                    sys.settrace(None)
                    print(file, frame.f_lineno, file=sys.stderr)
                    signal.raise_signal(signal.SIGUSR1)
            return trace

        sys.settrace(trace)
        try:
            use()
        finally:
            sys.settrace(None)
            with open(f"{root}/num_lines", "w") as file:
                file.write(str(num_lines))
        return num_lines >= line_number > 0  # another time there may be fewer lines

    def stop(number, frame):
        raise Stop

    def exit_code_of(name, use, again, line_number, is_raising):
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(f"{root}/{name}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
            code = 1
            try:
                is_sent = is_stopped = False
                try:
                    is_sent = interrupted(name, use, stop if is_raising else lambda *arguments: again(), line_number)
                except Stop:
                    is_stopped = True
                except RuntimeError as error:  # `Thread.start` of Python releases a lock twice then
                    is_stopped = isinstance(error.__context__, Stop)
                except wandb.Error:
                    assert not is_raising and use is use_wandb  # the handler has finished the run
                assert is_stopped or not (is_raising and is_sent), "the exception of the handler was suppressed"
                again()
                assert use is use_usage or not guard.faults, guard.faults  # usage may still be importing a module
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        deadline_s = time.monotonic() + hang_s
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            time.sleep(0.002)
            if time.monotonic() > deadline_s:
                os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(ended[1])

    problems = []
    uses = [(use_wandb, use_wandb_again), (use_tensorboard, use_tensorboard_again), (use_usage, use_usage_again)]
    for use, again in uses:
        def check(line_number, is_raising):
            name = f"{use.__name__}-{line_number}-{is_raising}"
            if exit_code_of(name, use, again, line_number, is_raising):
                problems.append(f"{name}: {open(f'{root}/{name}.txt').read()}")

        check(0, False)
        num_lines = int(open(f"{root}/num_lines").read())
        for number, line_number in enumerate(range(num_lines // 40, num_lines, num_lines // int(sys.argv[3]))):
            check(line_number, number % 2 == 0)
    assert not problems, problems
"""


@pytest.mark.parametrize("num_lines", [16, pytest.param(100, marks=pytest.mark.long)])
def test_signal_in_facades_and_usage(script: Callable[..., Script], logs: Path, num_lines: int) -> None:
    logs.mkdir()
    script(_FACADES, logs, int(HANG_S), num_lines, preload="tachograph").ok()


_INIT = """
    import ast, os, signal, sys
    from pathlib import Path
    import tachograph

    root, num_lines = sys.argv[1], int(sys.argv[2])
    package = os.path.dirname(tachograph.__file__)

    # The lines in blocks whose `OSError` is handled.
    lines = set()
    for path in Path(package).rglob("*.py"):
        if path.relative_to(package).parts[0] in ("_base", "journal", "recorder", "sinks"):
            for node in ast.walk(ast.parse(path.read_text())):
                head = node.items if isinstance(node, ast.With) else getattr(node, "handlers", [])
                if any("OSError" in ast.unparse(getattr(part, "type", part) or part) for part in head):
                    lines |= {(str(path), part.lineno) for item in node.body for part in ast.walk(item)
                              if hasattr(part, "lineno")}

    def init(line, reached):
        def trace(frame, event, argument):
            place = frame.f_code.co_filename, frame.f_lineno
            if not place[0].startswith(package):
                return None
            if event == "line" and place in lines:
                reached.add(place)
                if place == line:
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGUSR1)
            return trace

        def handle(number, frame):
            raise TimeoutError("from the handler")

        signal.signal(signal.SIGUSR1, handle)
        sys.settrace(trace)
        try:
            tachograph.init("x", log_dir=root, console=False, git=False, code=False)
        except TimeoutError as error:
            return str(error)
        finally:
            sys.settrace(None)

    def exit_code_of(line):
        pid = os.fork()
        if pid == 0:
            reached = set()
            is_raised = init(line, reached) == "from the handler"
            if line is None:
                Path(root, "reached").write_text(repr(sorted(reached)))
            os._exit(0 if is_raised == (line in reached) else 1)
        return os.waitpid(pid, 0)[1]

    assert exit_code_of(None) == 0
    reached = eval(Path(root, "reached").read_text())
    assert len(reached) > 20
    suppressed = [line for line in reached[:: max(len(reached) // num_lines, 1)] if exit_code_of(line)]
    assert not suppressed, suppressed
"""


@pytest.mark.parametrize("num_lines", [12, pytest.param(1000, marks=pytest.mark.long)])
def test_timeout_of_a_handler_ends_init(script: Callable[..., Script], logs: Path, num_lines: int) -> None:
    logs.mkdir()
    script(_INIT, logs, num_lines, preload="tachograph").ok()


def test_handled_os_errors_exclude_those_of_signal_handlers() -> None:
    """All code that the main thread of a training may run uses `faults` and `suppress` of the guard."""
    root = Path(tachograph.__file__).parent
    packages = ("_base", "journal", "one_logger", "reader", "recorder", "records", "sinks", "spans", "usage")
    other_processes = ("_csv_main.py", "_process_main.py")
    unguarded = []
    for path in (path for package in packages for path in sorted((root / package).rglob("*.py"))):
        if path == root / "_base" / "guard.py" or path.name in other_processes:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"contextlib\.suppress\(|except [^f].*(OSError|FileNotFoundError|FileExistsError)", line):
                unguarded.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    assert not unguarded


def test_only_exceptions_of_signal_handlers_propagate(script: Callable[..., Script], logs: Path) -> None:
    """Also if a handler is a method or takes `*arguments`, and not if it was handled before."""
    program = """
        import signal, sys, tachograph
        from tachograph._base.guard import guard

        class Stop(Exception):
            pass

        class Handler:
            def __call__(self, number, frame):
                signal.signal(number, signal.SIG_DFL)
                raise Stop

            def handle(self, *arguments):
                raise Stop

        class Value:
            def __init__(self, action):
                self.action = action

            def __float__(self):
                self.action()

        def fail():
            raise OSError("of the value")

        run = tachograph.init("x", log_dir=sys.argv[1], git=False)
        run.log(a=Value(fail), step=1)
        for handler in (Handler(), Handler().handle, lambda number, frame: fail()):
            signal.signal(signal.SIGUSR1, handler)
            try:
                run.log(a=Value(lambda: signal.raise_signal(signal.SIGUSR1)), step=2)
                raise SystemExit("suppressed")
            except (Stop, OSError):
                run.log(a=Value(fail), step=3)  # another fault while the exception is handled
                with guard("testing"):
                    fail()
        run.finish()
        """
    script(program, logs).ok()


_FIRST_USES = """
    import os, signal, sys, time, traceback
    import numpy, PIL.Image, yaml, tachograph as tacho, tachograph._init  # slow, and not of us
    from tachograph._base.guard import guard
    PIL.Image.init()

    root, num_children, hang_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    guard.strict = False
    open(f"{root}/file", "w").write("x")

    def use_span():
        with tacho.timed_span("work"):
            pass

    USES = {
        "log_artifact": lambda run: run.log_artifact("model", f"{root}/file").wait(),
        "log_file": lambda run: run.log_file(f"{root}/file"),
        "media": lambda run: run.log({"text": tacho.Text("x"), "loss": 1.0}, step=1),
        "span": lambda run: use_span(),
        "samples": lambda run: run.update_config({"sample_prompts": "x", "config_file": "none.yaml"}),
        "checkpoint": lambda run: run.log_checkpoint(f"{root}/file", step=1),
        "parent": lambda run: run.log_parent("none"),
        "dump": lambda run: run.dump(),
        "use_artifact": lambda run: run.use_artifact("model"),
        "error": lambda run: run.log_error(ValueError("x")),
        "finish": lambda run: run.finish(),
    }

    def interrupted(name, line_number):
        run = tacho.init(name, log_dir=f"{root}/{name}", console=False, git=False, code=False)

        def handle(number, frame):
            for use in list(USES.values())[:-1]:
                if run.status == "running":
                    use(run)

        signal.signal(signal.SIGUSR1, handle)
        num_lines = 0

        def trace(frame, event, argument):
            nonlocal num_lines
            file = frame.f_code.co_filename
            if event == "line" and ("/tachograph/" in file or frame.f_code.co_name == "<module>"):
                num_lines += 1
                if num_lines == line_number:
                    print(file, frame.f_lineno, file=sys.stderr)
                    signal.raise_signal(signal.SIGUSR1)
            return trace

        sys.settrace(trace)
        for use in USES.values():
            use(run)
        sys.settrace(None)
        assert not guard.faults, guard.faults
        return num_lines

    def exit_code_of(name, line_number):
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(f"{root}/{name}.txt", os.O_CREAT | os.O_WRONLY), 2)
            code = 1
            try:
                num_lines = interrupted(name, line_number)
                if line_number == 0:
                    open(f"{root}/num_lines", "w").write(str(num_lines))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        deadline_s = time.monotonic() + hang_s
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            time.sleep(0.002)
            if time.monotonic() > deadline_s:
                os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(ended[1])

    problems = []
    def check(line_number):
        name = f"run-{line_number}"
        if exit_code_of(name, line_number):
            problems.append(f"{name}: {open(f'{root}/{name}.txt').read()[-1500:]}")
    check(0)
    num_lines = int(open(f"{root}/num_lines").read())
    for line_number in range(5, num_lines, max(num_lines // num_children, 1)):
        check(line_number)
    assert not problems, "\\n".join([f"{len(problems)} of {num_lines}", *problems[:5]])
    print(num_lines)
"""


@pytest.mark.parametrize("num_lines", [10, pytest.param(300, marks=pytest.mark.long)])
def test_signal_in_the_first_use_of_a_feature(script: Callable[..., Script], logs: Path, num_lines: int) -> None:
    """Calls that import modules when they are first used."""
    logs.mkdir()
    script(_FIRST_USES, logs, num_lines, int(HANG_S), preload="tachograph").ok()
