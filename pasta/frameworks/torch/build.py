"""Builds an extension against an installed torch, once for each version; a file of the cache after
that.

hooks.py runs this in the profiled program's Python: only the standard library is there, and the
syntax is that of Python 3.8.
"""

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile


class CannotBuild(Exception):
    """Says in a line what is missing."""


def extension(torch, source, cache, include, say=lambda text: None, options=()):
    """The extension module of a C++ file for this torch and Python, from the cache or built now.

    `hooks.cpp` gives the module `_pasta_torch_hooks`. `include` are directories of our headers, all
    of which count for the cache; `options` go to the compiler. Raises CannotBuild, or ImportError
    where the library cannot be opened.
    """
    name = "_pasta_torch_" + os.path.splitext(os.path.basename(source))[0]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    library = os.path.dirname(os.path.abspath(torch.__file__))
    digest = hashlib.sha256()
    for path in [source] + sorted(
        os.path.join(each, file) for each in include for file in os.listdir(each)
    ):
        with open(path, "rb") as file:
            digest.update(file.read())
    told = (torch.__version__, str(torch.version.git_version), suffix, library) + tuple(options)
    for text in told:
        digest.update(text.encode() + b"\0")
    # A library of which a variable of each thread must lie where it is found without a call may
    # find no room there; then it is built to do without.
    for option in ("", "PASTA_DYNAMIC_TLS"):
        directory = os.path.join(cache, digest.hexdigest()[:24] + option[:1])
        path = os.path.join(directory, name + suffix)
        if not os.path.exists(path):
            extra = list(options) + (["-D" + option] if option else [])
            _build(torch, library, source, include, directory, path, extra, say)
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


def _compiler():
    named = os.environ.get("CXX")
    for command in [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]:
        if command and shutil.which(command[0]):
            return command
    raise CannotBuild("no C++ compiler was found (install g++, or name one in CXX)")


def _build(torch, library, source, include, directory, path, options, say):
    """Compiles into the cache; of processes that do so at once the last one's file stays."""
    compiler = _compiler()
    python = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(python, "Python.h")):
        raise CannotBuild("the headers of this Python are missing (%s/Python.h)" % python)
    if not os.path.exists(os.path.join(library, "include", "ATen", "record_function.h")):
        raise CannotBuild("this torch comes without headers")
    what = os.path.splitext(os.path.basename(source))[0]
    say("building %s for torch %s, once ..." % (what, torch.__version__))
    os.makedirs(directory, exist_ok=True)
    handle, made = tempfile.mkstemp(suffix=".so", dir=directory)
    os.close(handle)
    newer = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 12)
    command = compiler + [
        "-O2", "-fPIC", "-shared", "-w", "-DNDEBUG", "-std=c++20" if newer else "-std=c++17",
        "-D_GLIBCXX_USE_CXX11_ABI=%d" % torch.compiled_with_cxx11_abi(),
        "-I" + os.path.join(library, "include"),
        "-I" + os.path.join(library, "include", "torch", "csrc", "api", "include"),
        "-I" + python,
    ]  # fmt: skip
    command += ["-I" + each for each in include]
    command += [source, "-o", made, "-L" + os.path.join(library, "lib"), "-lc10", "-ltorch_cpu"]
    command += options
    environment = {
        name: value for name, value in os.environ.items()
        if name not in ("LD_PRELOAD", "PASTA_SHIM") and not name.endswith("_INJECTION64_PATH")
    }  # fmt: skip
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=600,
        )  # fmt: skip
        if done.returncode:
            with open(os.path.join(directory, "build.log"), "wb") as log:
                log.write((" ".join(command) + "\n").encode() + done.stdout)
            raise CannotBuild("the C++ compiler failed (see %s/build.log)" % directory)
        os.replace(made, path)
    finally:
        if os.path.exists(made):
            os.unlink(made)
