from __future__ import annotations

import textwrap

import pytest

# The thread has begun to import when the process forks. It gets a logger in the middle of that, which takes the lock of
# logging; logging locks it in a hook before each fork.
SLOW_MODULE = """
    import sys, time
    sys.modules["__main__"].has_begun.set()
    time.sleep(0.5)
    import logging
    logging.getLogger("slow")
    value = 1
"""
PROGRAM = """
    import os, sys, threading, time
    sys.path.insert(0, sys.argv[1])
    has_begun = threading.Event()
    {imports}
    from tachograph._base.threads import TelemetryThread
    import concurrent.futures.thread

    def work():
        import slow

    thread = TelemetryThread(work, name="tachograph-test")
    thread.start()
    has_begun.wait()
    start_s = time.monotonic()
    child = os.fork()
    if not child:
        import slow
        os._exit(slow.value)
    took_s = time.monotonic() - start_s
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    thread.join()
    print(took_s)
"""


@pytest.mark.parametrize("imports", ["", "import logging"])
def test_a_fork_waits_for_the_imports_of_a_thread(imports, script, tmp_path):
    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW_MODULE))
    process = script(PROGRAM.format(imports=imports), tmp_path, preload="")
    code, out, err = process.wait()
    assert code == 0, err
    assert not err
    assert float(out) < 55  # it did not wait until its limit


def test_a_fork_inside_of_an_import_ends_although_the_thread_waits_for_that_import(script, tmp_path):
    (tmp_path / "forks.py").write_text(
        textwrap.dedent("""
        import os, time
        from tachograph._base.threads import TelemetryThread

        def work():
            import forks

        TelemetryThread(work, name="tachograph-test").start()
        time.sleep(0.2)
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        """)
    )
    script("import sys; sys.path.insert(0, sys.argv[1]); import forks", tmp_path, preload="").ok()
