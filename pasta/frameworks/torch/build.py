"""Builds C++ extensions against an installed torch, once for each version, and caches them.

hooks.py runs this in the profiled program's Python: it uses the standard library only, and the
syntax of Python 3.8.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time


class CannotBuild(Exception):
    """The extension cannot be built; the message is one line that names what is missing."""


def extension(torch, source, cache, include, say=lambda text: None, options=()):
    """Returns the extension module for this torch and Python, from the cache or built now.

    `source`: a C++ file, or a list of files that define no name twice; the first one names the
    module: `hooks.cpp` gives `_pasta_torch_hooks`. `include`: directories of its headers. The
    cache's key covers the sources, all headers below these directories, the options, torch and
    Python.
    `say`: called with a line before a build. `options`: for the compiler and the linker.
    Raises CannotBuild, or ImportError if the library cannot be opened.
    """
    sources = [source] if isinstance(source, str) else list(source)
    name = "_pasta_torch_" + _stem(sources[0])
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    library = os.path.dirname(os.path.abspath(torch.__file__))
    digest = hashlib.sha256()
    for path in sources + _headers(include):
        with open(path, "rb") as file:
            digest.update(file.read())
    versions = (torch.__version__, str(torch.version.git_version), suffix, library)
    for text in versions + tuple(options):
        digest.update(text.encode() + b"\0")
    # Thread-local variables of the initial-exec model may find no room when a library is opened
    # late; then it is built with the slower dynamic model.
    for option in ("", "PASTA_DYNAMIC_TLS"):
        directory = os.path.join(cache, digest.hexdigest()[:24] + option[:1])
        path = os.path.join(directory, name + suffix)
        if not os.path.exists(path):
            extra = list(options) + (["-D" + option] if option else [])
            try:
                os.makedirs(directory, exist_ok=True)
            except OSError as error:
                why = (directory, error.strerror)
                raise CannotBuild("the cache %s is not writable: %s" % why) from None
            with _alone(directory):
                if not os.path.exists(path):
                    _build(torch, library, sources, include, directory, path, extra, say)
        spec = importlib.util.spec_from_file_location(name, path)
        try:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError as error:
            if option or "static TLS" not in str(error):
                raise
            continue
        sys.modules.pop(name, None)
        return module
    return None


@contextlib.contextmanager
def _alone(directory):
    """Lets one process build at a time: the ranks of a job start together, and would all compile.

    One that holds the lock for ten minutes, or a file system without locks, does not stop others.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(open(os.path.join(directory, "lock"), "w"))
            for _ in range(6000):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)  # a fork may have a copy
                    break
                except BlockingIOError:
                    time.sleep(0.1)
        except OSError:
            pass
        yield


def _headers(directories):
    """Paths of all headers below the directories, in a stable order."""
    return [
        os.path.join(place, file)
        for each in directories
        for place, _, files in sorted(os.walk(each)) for file in sorted(files)
        if file.endswith(".h")
    ]  # fmt: skip


def _stem(path):
    return os.path.splitext(os.path.basename(path))[0]


def _compiler():
    named = os.environ.get("CXX")
    for command in [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]:
        if command and shutil.which(command[0]):
            return command
    raise CannotBuild("no C++ compiler was found (install g++, or name one in CXX)")


def version(torch):
    """Major and minor version of a torch: (2, 13) of 2.13.0+cpu."""
    return tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))


def _build(torch, library, sources, include, directory, path, options, say):
    """Compiles into the cache, and replaces the file as a whole."""
    compiler = _compiler()
    python = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(python, "Python.h")):
        raise CannotBuild("the Python headers are missing (%s/Python.h)" % python)
    if not os.path.exists(os.path.join(library, "include", "ATen", "record_function.h")):
        raise CannotBuild("this torch has no headers")
    say("building %s for torch %s, once ..." % (_stem(sources[0]), torch.__version__))
    standard = "c++20" if version(torch) >= (2, 12) else "c++17"
    compile = compiler + [
        "-O2", "-fPIC", "-fvisibility=hidden", "-w", "-DNDEBUG", "-std=" + standard,
        "-D_GLIBCXX_USE_CXX11_ABI=%d" % torch.compiled_with_cxx11_abi(),
        "-I" + os.path.join(library, "include"),
        "-I" + os.path.join(library, "include", "torch", "csrc", "api", "include"),
        "-I" + python,
    ]  # fmt: skip
    compile += ["-I" + each for each in include]
    links = ["-L" + os.path.join(library, "lib"), "-lc10", "-ltorch_cpu"] + list(options)
    work = tempfile.mkdtemp(dir=directory)
    log = os.path.join(directory, "build.log")
    try:
        made = os.path.join(work, "made.so")
        if len(sources) == 1:
            commands = [compile + ["-shared", sources[0], "-o", made] + links]
        else:
            objects = {each: os.path.splitext(each)[0] + ".o" for each in _parts(sources, work)}
            # compilers warn of linker options where nothing is linked
            plain = [each for each in options if not each.startswith(("-l", "-L", "-Wl,"))]
            _run([compile + ["-c", each, "-o", objects[each]] + plain for each in objects], log)
            commands = [compiler + ["-shared"] + list(objects.values()) + ["-o", made] + links]
        _run(commands, log)
        os.replace(made, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _parts(sources, directory):
    """Files to compile side by side, one for each processor: most of the time goes by for torch's
    headers, which each of them reads once."""
    count = min(len(sources), len(os.sched_getaffinity(0)))
    parts = []
    for number in range(count):
        parts.append(os.path.join(directory, "part%d.cpp" % number))
        with open(parts[-1], "w") as file:
            file.writelines(
                '#include "%s"\n' % os.path.abspath(each) for each in sources[number::count]
            )
    return parts


def _run(commands, log):
    """Runs compilers side by side; writes the output of one that failed to the log.

    Raises CannotBuild if one failed.
    """
    environment = {
        name: value for name, value in os.environ.items()
        if name not in ("LD_PRELOAD", "PASTA_SHIM") and not name.endswith("_INJECTION64_PATH")
    }  # fmt: skip
    running = []
    try:
        for command in commands:
            output = tempfile.TemporaryFile()
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            running.append((command, process, output))
        for command, process, output in running:
            if process.wait(timeout=600):
                output.seek(0)
                with open(log, "wb") as file:
                    file.write((" ".join(command) + "\n").encode() + output.read())
                raise CannotBuild("the C++ compiler failed (see %s)" % log)
    finally:
        for _, process, output in running:
            if process.poll() is None:
                process.kill()
                process.wait()
            output.close()
