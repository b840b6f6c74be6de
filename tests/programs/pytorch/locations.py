"""Compares each location that the hooks find with Python's own: `locations.py DIRECTORY` of the
extension `location.cpp`, in any version of Python. Prints whether frames were read without the
interpreter's lock."""

import asyncio
import functools
import gc
import random
import sys
import threading

sys.path.insert(0, sys.argv[1])
import location

found = {}  # frames by stack
checked = 0


class Module:
    def __init__(self, name, *parts):
        self.name, self.parts = name, parts

    def __call__(self, *arguments):
        return self.forward(*arguments)

    def forward(self, depth):
        check()
        for part in self.parts:
            part(depth)
            check()


def name_modules(innermost, outermost):
    for each in (innermost, outermost):
        location.name(each, each.name)


def check():
    global checked
    stack, module = location.locate()
    frame, expected, inside = sys._getframe(1), [], ""
    while frame and len(expected) < 128:
        code = frame.f_code
        expected.append((code.co_filename, code.co_name, frame.f_lineno))
        if code is Module.__call__.__code__ and not inside:
            inside = frame.f_locals["self"].name
        frame = frame.f_back
    if stack not in found:
        found[stack] = location.frames(stack)[1:]
    assert found[stack] == expected[: most - 1], (found[stack], expected)
    assert module == inside, (module, inside)
    checked += 1


def recursion(depth, choose):
    check()
    if depth == 0:
        return
    if choose.random() < 0.5:
        recursion(depth - 1, choose)
    else:
        recursion(depth - 1, choose)
    check()


def generator(depth):
    check()
    yield 1
    if depth:
        yield from generator(depth - 1)
    check()
    yield 2


def generators():
    first, second = generator(3), generator(3)
    next(first), next(second)
    for _ in first:
        check()
    list(second)
    sum(1 for _ in generator(2) if not check())
    generator(2).close()


class Manager:
    def __init__(self):
        check()

    def __enter__(self):
        check()

    def __exit__(self, *error):
        check()
        return True

    def __del__(self):
        check()


def fail(depth):
    try:
        if depth == 0:
            raise ValueError
        fail(depth - 1)
    except ValueError:
        check()
        raise
    finally:
        check()


def exceptions():
    for _ in range(3):
        with Manager():
            fail(5)
        check()


def callbacks():
    sorted(range(4), key=lambda number: check() or number)
    functools.partial(check)()
    max(range(3), key=lambda number: check() or -number)
    [check() for _ in range(3)]
    for _ in range(40):  # Python specializes what runs often
        Manager()


async def coroutine(depth):
    check()
    await asyncio.sleep(0)
    if depth:
        await coroutine(depth - 1)
    check()


async def coroutines():
    await asyncio.gather(coroutine(3), coroutine(2))


def replaced_code():
    # the same instructions, at the same address as of the code before
    for number in range(300):
        names = {"check": check}
        text = "\n" * number + f"def of_{number}():\n    check()\nof_{number}()"
        exec(compile(text, f"file {number}", "exec"), names)
        del names
        if number % 50 == 0:
            gc.collect()


def changed_code():
    def one():
        check()

    def other():

        check()

    first, second = one.__code__, other.__code__
    for code in (first, second, first):
        one.__code__ = code
        one()


def reused_frames():
    # a frame at the address of the one before it: of the same code, called from another line
    def inner():
        check()

    for _ in range(3):
        inner()
        inner()
        (lambda: inner())()
        (lambda: (lambda: inner())())()


def traced():
    lines = []

    def trace(frame, event, argument):
        if frame.f_code is traced_function.__code__:
            sys.settrace(None)
            check()
            lines.append(frame.f_lineno)
            sys.settrace(trace)
        return trace

    def traced_function():
        check()
        return [check()]

    sys.settrace(trace)
    traced_function()
    sys.settrace(None)
    traced_function()
    assert lines
    sys.setprofile(lambda *arguments: None)
    traced_function()
    sys.setprofile(None)


def modules():
    for _ in range(3):
        inner = [Module(f"inner {i}") for i in range(3)]
        outer = Module("outer", *inner, Module("middle", inner[0]))
        outer(0)
        outer(1)
    for number in range(50):  # at the addresses of others
        Module(f"once {number}")(0)


def everything(seed):
    choose = random.Random(seed)
    check()
    for depth in (1, 5, 30, 90, 200):
        recursion(depth, choose)
    for each in (generators, exceptions, callbacks, replaced_code, changed_code, reused_frames):
        each()
    for each in (traced, modules):
        each()
    asyncio.run(coroutines())


failures = []


def in_thread(seed):
    try:
        everything(seed)
    except BaseException as error:
        failures.append(error)
        raise


for most in (64, 2):
    found.clear()
    lockless = location.start(most, Module.__call__.__code__, name_modules)
    everything(1)
    threads = [threading.Thread(target=in_thread, args=(seed,)) for seed in range(2, 5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures
assert checked > 5000, checked

print("without the lock" if lockless else "with the lock")
