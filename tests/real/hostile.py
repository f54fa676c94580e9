"""Jobs that do to a worker what candidates do: crash it, hang it, flood it, leave things behind.

Each is called as `job(payload, announce)`. test_pool.py says what the caller must get for each.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MEGABYTE = 1 << 20


class Weird(BaseException):
    """Not an Exception."""


class Textless(Exception):
    """An exception that cannot say what it is."""

    def __str__(self):
        raise RuntimeError("no text for you")

    __repr__ = __str__


# --- well-behaved, and wrong in the usual ways ---------------------------------------------------


def returns(payload, announce):
    announce("only phase")
    return {"payload": payload, "sum": sum(range(10))}


def raises(payload, announce):
    announce("before the error")
    raise ValueError("wrong on purpose")


def raises_base_exception(payload, announce):
    raise Weird("not an Exception")


def raises_keyboard_interrupt(payload, announce):
    raise KeyboardInterrupt


def raises_without_text(payload, announce):
    raise Textless


def returns_no_json(payload, announce):
    return object()


def returns_itself(payload, announce):
    value = []
    value.append(value)
    return value


def returns_much(payload, announce):
    return "x" * (50 * MEGABYTE)


def recurses(payload, announce):
    return recurses(payload, announce)


# --- leaves without an answer --------------------------------------------------------------------


def system_exit(payload, announce):
    raise SystemExit(5)


def system_exit_with_text(payload, announce):
    sys.exit("goodbye")


def leaves_in_silence(payload, announce):
    os._exit(0)


def leaves(payload, announce):
    os._exit(3)


def becomes_another_program(payload, announce):
    os.execv("/bin/true", ["true"])


def segfaults(payload, announce):
    announce("the crash")
    print("last words")
    ctypes.string_at(0)


def aborts(payload, announce):
    os.abort()


def kills_itself(payload, announce):
    os.kill(os.getpid(), signal.SIGKILL)


def uses_up_its_cpu_limit(payload, announce):
    resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
    while True:
        pass


# --- never ends ----------------------------------------------------------------------------------


def ignores_signals_and_loops(payload, announce):
    announce("the loop")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def sleeps(payload, announce):
    time.sleep(1000)


def backtracks(payload, announce):
    re.match(r"(a+)+$", "a" * 60 + "b")


def stops_itself(payload, announce):
    os.kill(os.getpid(), signal.SIGSTOP)


def closes_everything_and_waits(payload, announce):
    os.closerange(0, 65536)
    time.sleep(1000)


def compiles_forever(payload, announce):
    """As inductor does, in another program: one file is read, one is half written."""
    program = "import sys, time; f = open(sys.argv[1], 'w'); f.write('half'); f.flush(); g = open(sys.argv[2]);"
    compiler = subprocess.Popen(
        [sys.executable, "-c", f"{program} print('written', flush=True); time.sleep(1000)", *payload.values()],
        stdout=subprocess.PIPE,
    )
    compiler.stdout.readline()
    announce("half written")
    compiler.wait()


# --- memory --------------------------------------------------------------------------------------


def allocates(payload, announce):
    kept = []
    while True:
        kept.append(b"x" * (32 * MEGABYTE))


def allocates_in_children(payload, announce):
    for _ in range(3):
        if os.fork() == 0:
            kept = b"x" * (300 * MEGABYTE)
            time.sleep(1000)
            del kept
    time.sleep(1000)


def raises_memory_error(payload, announce):
    raise MemoryError("none left")


def asks_torch_for_too_much(payload, announce):
    import torch

    torch.empty(1 << 55)


def limits_its_own_memory(payload, announce):
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MEGABYTE, resource.RLIM_INFINITY))
    return len(b"x" * (512 * MEGABYTE))


# --- floods --------------------------------------------------------------------------------------


def floods_stdout(payload, announce):
    line = b"o" * (MEGABYTE - 1) + b"\n"
    for _ in range(120):
        os.write(1, line)
    print("the end of the flood")


def floods_stderr(payload, announce):
    for _ in range(120):
        sys.stderr.write("e" * MEGABYTE)
    sys.stderr.write("the end of the flood")


def floods_phases(payload, announce):
    for number in range(20_000):
        announce(f"phase {number}")
    return number


def prints_binary(payload, announce):
    os.write(1, bytes(range(256)) * 16)
    os.write(2, b"\xff\xfe\x00 the end")


# --- processes and threads that live on ----------------------------------------------------------


def leaves_a_child(payload, announce):
    if os.fork() == 0:
        time.sleep(1000)
        os._exit(0)
    return "parent"


def leaves_a_daemon(payload, announce):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for _ in range(6000):
                with contextlib.suppress(OSError):
                    Path(tempfile.gettempdir(), f"{time.monotonic_ns()}").write_text("still here")
                time.sleep(0.01)
        os._exit(0)
    time.sleep(0.1)
    return "parent"


def _hydra():
    """Each process forks the next one and ends, each in a session of its own. Not for ever: it may get away."""
    end = time.monotonic() + 60
    if os.fork() == 0:
        while time.monotonic() < end:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
            time.sleep(0.001)
        os._exit(0)


def leaves_a_hydra(payload, announce):
    _hydra()
    return "parent"


def keeps_a_hydra(payload, announce):
    _hydra()
    announce("it lives")
    time.sleep(1000)


def leaves_another_program(payload, announce):
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    return "parent"


def leaves_a_multiprocessing_child(payload, announce):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=time.sleep, args=(1000,), daemon=False)
    process.start()
    return process.is_alive()


def leaves_threads(payload, announce):
    for _ in range(4):
        threading.Thread(target=time.sleep, args=(1000,), daemon=False).start()
    return threading.active_count()


def leaves_an_exit_handler(payload, announce):
    import atexit

    atexit.register(time.sleep, 1000)
    return "registered"


def returns_twice(payload, announce):
    copy = os.fork() == 0
    return "copy" if copy else "first"


def raises_twice(payload, announce):
    os.fork()
    raise ValueError("from both")


# --- the worker's own plumbing -------------------------------------------------------------------


def _answer_descriptor():
    """Find it as a hostile job would: the pipe that is neither stdout nor stderr."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if int(link.name) > 2 and str(link.readlink()).startswith("pipe:"):
                return int(link.name)
    raise AssertionError("no pipe found")


def closes_everything(payload, announce):
    os.closerange(0, 65536)
    return "into the void"


def writes_garbage(payload, announce):
    os.write(_answer_descriptor(), b"garbage " * 1000)
    return "after garbage"


def writes_a_flood_of_garbage(payload, announce):
    for _ in range(20):
        os.write(_answer_descriptor(), os.urandom(MEGABYTE))
    return "after garbage"


def writes_half_a_frame(payload, announce):
    os.write(_answer_descriptor(), struct.pack(">4sII", b"TPF1", 20, 1000) + b'{"kind": "ret')
    os._exit(0)


def writes_a_frame_that_is_no_json(payload, announce):
    os.write(_answer_descriptor(), struct.pack(">4sII", b"TPF1", 8, 0) + b"not json")
    os._exit(0)


def writes_an_answer_and_crashes(payload, announce):
    header = json.dumps({"kind": "returned"}).encode()
    os.write(_answer_descriptor(), struct.pack(">4sII", b"TPF1", len(header), 1) + header + b"1")
    os.abort()


def writes_an_answer_that_is_no_json(payload, announce):
    header = json.dumps({"kind": "returned"}).encode()
    os.write(_answer_descriptor(), struct.pack(">4sII", b"TPF1", len(header), 3) + header + b"{]}")
    os._exit(0)


def opens_all_descriptors(payload, announce):
    kept = []
    while True:
        kept.append(Path(os.devnull).open())  # noqa: SIM115


def kills_the_server(payload, announce):
    announce("the kill")
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def stops_the_server(payload, announce):
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1000)


def signals_the_server(payload, announce):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        os.kill(os.getppid(), number)
    return "sent"


# --- files and state -----------------------------------------------------------------------------


def removes_its_folder(payload, announce):
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    shutil.rmtree(tempfile.gettempdir())
    return folder


def leaves_files(payload, announce):
    folder = Path(tempfile.mkdtemp())
    (folder / "file").write_text("left")
    (folder / "link").symlink_to("/")
    (folder / "locked").mkdir()
    (folder / "locked" / "file").write_text("left")
    (folder / "locked").chmod(0)
    return str(folder)


def changes_the_world(payload, announce):
    import torch

    os.environ["TORCHPARITY_TEST_LEAK"] = "1"
    os.umask(0o777)
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.add = None
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    sys.modules["json"] = None
    sys.stdout = None
    sys.path.clear()
    return "changed"


def sees_the_world(payload, announce):
    import torch

    return {
        "environment": os.environ.get("TORCHPARITY_TEST_LEAK"),
        "umask": os.umask(0o022),
        "cwd": str(Path.cwd()),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "add": torch.add is not None,
        "dtype": str(torch.get_default_dtype()),
        "random": torch.rand(3).tolist(),
        "json": sys.modules["json"] is not None,
        "files": os.listdir(tempfile.gettempdir()),  # noqa: PTH208
        "stdin": sys.stdin.read(),
        "session": os.getsid(0) == os.getpid(),
        "descriptors": len(list(open_descriptors())),
    }


def open_descriptors():
    """Yield what is open, but for the facts about the processor that torch leaves open on ARM."""
    for entry in Path("/proc/self/fd").iterdir():
        target = str(entry.readlink()) if entry.is_symlink() else ""
        if not target.startswith("/sys/devices/system/cpu/"):
            yield target


# --- torch ---------------------------------------------------------------------------------------


def computes(payload, announce):
    """Use many threads, forwards and backwards, and a compiler."""
    import torch

    torch.manual_seed(0)
    announce("eager")
    weight = torch.randn(600, 600, requires_grad=True)
    (weight @ weight).sin().sum().backward()
    announce("compile")
    compiled = torch.compile(lambda x: (x.sin() + 1) * 2, backend=payload)
    value = torch.linspace(0, 1, 8)
    return {"close": torch.allclose(compiled(value), (value.sin() + 1) * 2), "threads": torch.get_num_threads()}
