"""Hooks in PyTorch. libpasta runs this file in the profiled program's Python, whatever its version
and environment, just before the program imports torch.

It uses the standard library and torch only, and the syntax of Python 3.8. Nothing here may raise
into the program, print to its output, or change what it computes. `settings`, a global that
libpasta sets, is the launcher's JSON.

pasta.profile runs the file too, in programs that have imported torch already: with "block" in the
settings nothing happens before `prepare_block` is called.
"""

import atexit
import json
import os
import sys


class _AfterImport:
    """Finder that calls `then` with a module right after its import, and removes itself."""

    def __init__(self, name, then):
        self.name, self.then, self.busy = name, then, False

    def find_spec(self, name, path=None, target=None):
        if name != self.name or self.busy:
            return None
        from importlib.util import find_spec

        self.busy = True
        try:
            spec = find_spec(name)
        finally:
            self.busy = False
            if self in sys.meta_path:
                sys.meta_path.remove(self)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self.then)
        return spec


class _Loader:
    """The module's own loader, followed by `then`; leaves no trace on the module."""

    def __init__(self, loader, then):
        self.loader, self.then = loader, then

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        try:
            self.then(module)
        except Exception as error:
            _say("torch is not followed: %r" % (error,))


def _say(text):
    if not _settings["quiet"]:
        os.write(2, ("pasta: %s\n" % text).encode("utf-8", "replace"))


# ---- the extension ---------------------------------------------------------------------------

_SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cpp")


def _sibling(name):
    """Loads a module of this directory without making it importable."""
    import importlib.util

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = importlib.util.spec_from_file_location("_pasta_" + name, path)
    module = importlib.util.module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def _built(torch, build, name, options=()):
    """The extension of this name. Raises what `build.extension` raises."""
    source = os.path.join(_SOURCES, name, name + ".cpp")
    include = [_SOURCES, _settings["include"]]
    return build.extension(torch, source, _settings["cache"], include, say=_say, options=options)


def _extension(torch, name, consequence, options=()):
    """The extension of this name, or None if it cannot be built: a line then names the
    `consequence` and the reason."""
    build = _sibling("build")
    try:
        return _built(torch, build, name, options)
    except build.CannotBuild as error:
        _say("%s: %s" % (consequence, error))
    return None


# ---- modules ---------------------------------------------------------------------------------


def _storage_of(tensor):
    """Address, bytes and device number of a tensor's storage; address 0 if it has none."""
    try:
        storage = tensor.untyped_storage()
        device = tensor.device
        return storage.data_ptr(), storage.nbytes(), -1 if device.type == "cpu" else device.index
    except Exception:  # a subclass without storage, a fake tensor
        return 0, 0, -1


_PARAMETER, _STATE, _BUFFER = 3, 5, 6  # PASTA_ROLE_*


def _record_role(extension, tensor, role, name):
    address, bytes, device = _storage_of(tensor)
    if address:
        extension.role(address, bytes, device, role, name)


def _follow_registrations(torch, extension):
    """Records parameters and buffers when modules register them, long before the modules run."""
    from torch.nn.modules import module

    is_compiling = torch.compiler.is_compiling

    def hook(role):
        def registered(owner, name, tensor):
            if tensor is None or is_compiling():
                return
            try:
                _record_role(extension, tensor, role, name)
            except Exception as error:  # a name that is not UTF-8
                _say("a tensor of a module is not followed: %r" % (error,))

        return registered

    return [
        module.register_module_parameter_registration_hook(hook(_PARAMETER)),
        module.register_module_buffer_registration_hook(hook(_BUFFER)),
    ]


class _Modules:
    """Names modules by their paths, and records their parameters and buffers."""

    def __init__(self, extension):
        import weakref

        self.extension = extension
        self.paths = weakref.WeakKeyDictionary()
        self.kinds = weakref.WeakKeyDictionary()
        #: address of the first parameter when they were recorded, by outermost module
        self.recorded = weakref.WeakKeyDictionary()

    def __call__(self, module, outermost):
        """Called when `module` runs inside `outermost`, if one of them is unknown or was checked
        more than a second ago."""
        if outermost not in self.paths:
            self.name(outermost, type(outermost).__name__)
        if module not in self.paths:  # it is not a child of another module
            inside = self.paths[outermost]
            self.name(module, "%s/%s" % (inside, type(module).__name__))
        for each in (outermost, module):  # a block of the program forgets names
            self.register(each)
        self.record_parameters(outermost)

    def name(self, root, name):
        for path, module in root.named_modules():
            if module not in self.paths:
                self.paths[module] = "%s.%s" % (name, path) if path else name
                self.kinds[module] = " (%s)" % type(module).__name__ if path else ""
                self.register(module)

    def register(self, module):
        self.extension.name_module(module, self.paths[module] + self.kinds[module])

    def record_parameters(self, root):
        first = next(root.parameters(), None)
        address = 0 if first is None else _storage_of(first)[0]
        if self.recorded.get(root) == address:
            return
        self.recorded[root] = address
        for role, named in (
            (_PARAMETER, root.named_parameters()), (_BUFFER, root.named_buffers()),
        ):  # fmt: skip
            for name, tensor in named:
                _record_role(self.extension, tensor, role, name)


# ---- optimizers ------------------------------------------------------------------------------


class _Optimizers:
    """Records which storages are parameters and optimizer state."""

    def __init__(self, torch, extension):
        import weakref

        self.tensor, self.extension = torch.Tensor, extension
        self.is_compiling = torch.compiler.is_compiling
        #: counts of tensors and addresses of some of them when they were recorded, by optimizer
        self.recorded = weakref.WeakKeyDictionary()

    def after_step(self, optimizer, arguments, keywords):
        if self.is_compiling():
            return
        try:
            mark = self.mark(optimizer)
            if self.recorded.get(optimizer) != mark:
                self.record(optimizer)
                self.recorded[optimizer] = mark
        except Exception as error:  # an optimizer that is unlike torch's
            _say("an optimizer is not followed: %r" % (error,))

    def mark(self, optimizer):
        firsts = [group["params"][0] for group in optimizer.param_groups if group["params"]]
        states = [optimizer.state.get(each, {}) for each in firsts]
        tensors = firsts + [
            value for state in states for value in state.values() if isinstance(value, self.tensor)
        ]
        counts = [len(group["params"]) for group in optimizer.param_groups]
        return counts, len(optimizer.state), [_storage_of(each)[0] for each in tensors]

    def record(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _record_role(self.extension, parameter, _PARAMETER, None)
                for name, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, self.tensor):
                        _record_role(self.extension, value, _STATE, str(name))


def _follow_roles(torch, extension):
    """Records what modules hold and optimizers update; returns handles whose `remove` ends that."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    after_step = _Optimizers(torch, extension).after_step
    return [
        *_follow_registrations(torch, extension),
        register_optimizer_step_post_hook(after_step),
    ]


# ---- without the extension ------------------------------------------------------------------


class _Library:
    """The part of the extension's functions that libpasta has itself."""

    def __init__(self):
        import ctypes

        self.process = ctypes.PyDLL(None)
        self.process.pasta_framework_role.restype = None
        self.process.pasta_framework_role.argtypes = [
            ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32, ctypes.c_char_p,
        ]  # fmt: skip

    def role(self, address, bytes, device, role, name):
        text = None if name is None else name.encode("utf-8", "replace")
        self.process.pasta_framework_role(address, bytes, device, role, text)


def _follow_names(torch):
    """Follows allocations, and operators by name if a test operator is recorded correctly."""
    library = _Library()
    if not library.process.pasta_framework_use(b"torch", torch.__version__.encode()):
        return
    if _settings["operators"]:
        begun = library.process.pasta_torch_names_begin()
        if begun:
            torch.empty(0)
        if not begun or not library.process.pasta_torch_names_end():
            _say("operators of torch %s are not followed" % torch.__version__)
    if _settings["tensors"]:
        _follow_roles(torch, library)


# ---- torch.profiler -------------------------------------------------------------------------


def _join_profiler(torch):
    """Puts records of accelerators into torch.profiler's own traces (cpp/kineto), from the first
    profiler on that the program prepares; until then nothing is built or changed."""
    from torch.autograd import profiler

    prepare = profiler._prepare_profiler
    consequence = "torch.profiler does not show PASTA's records"

    def prepare_first(*arguments, **keywords):
        if profiler._prepare_profiler is prepare_first:
            profiler._prepare_profiler = prepare
        try:
            include = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "include")
            options = ["-DUSE_KINETO", "-DFMT_HEADER_ONLY", "-DKINETO_NAMESPACE=libkineto"]
            options.append("-I" + os.path.join(include, "kineto"))
            if not os.path.exists(os.path.join(include, "fmt", "format.h")):
                options.append("-I" + os.path.join(_SOURCES, "kineto", "fmt_fallback"))
            extension = _extension(torch, "kineto", consequence, options)
            if extension is not None and not extension.start():
                _say("%s: the preloaded library is from another version" % consequence)
        except Exception as error:
            _say("%s: %r" % (consequence, error))
        return prepare(*arguments, **keywords)

    if profiler.kineto_available():
        profiler._prepare_profiler = prepare_first


# ---- managed memory --------------------------------------------------------------------------


def _use_managed(torch):
    """Gives torch PASTA's allocator of managed memory, before the first allocation."""
    none = "torch.managed=true has no effect: "
    if not torch.version.cuda:
        _say(none + "torch %s is not built for CUDA" % torch.__version__)
        return
    import ctypes

    path = _settings["managed"]
    library = ctypes.CDLL(path)
    if not library.pasta_managed_ready():
        _say(none + "there is no CUDA driver")
        return
    memory = torch.cuda.memory
    allocator = memory.CUDAPluggableAllocator(path, "pasta_managed_alloc", "pasta_managed_free")
    # without it torch would ignore Tensor.record_stream, and memory in use would be reused
    record = ctypes.cast(library.pasta_managed_record_stream, ctypes.c_void_p)
    allocator.allocator().set_record_stream_fn(record.value)
    memory.change_current_allocator(allocator)


# ---- the beginning ---------------------------------------------------------------------------


def _follow(torch):
    if _settings.get("managed"):
        try:
            _use_managed(torch)
        except Exception as error:
            _say("torch.managed=true has no effect: %r" % (error,))
    if _settings["kineto"]:
        _join_profiler(torch)
    extension = None
    if _settings["operators"]:
        extension = _extension(torch, "hooks", "only the names of torch operators are recorded")
    if extension is None:
        _follow_names(torch)
        return
    followed = extension.start(
        torch.__version__, _settings["operators"], _settings["tensors"],
        _settings["frames"] if _settings["stacks"] else 0,
        torch.nn.Module.__call__.__code__ if _settings["modules"] else None, _Modules(extension),
    )  # fmt: skip
    atexit.register(extension.stop_sampler)
    if followed and _settings["tensors"]:
        _follow_roles(torch, extension)


def prepare_block(torch, library):
    """Returns a function that follows torch, to be called when a block has begun in the ring.

    That function returns one that ends it, and a description of unrecorded data. `library`: address
    of the function that returns libpasta's table, 0 if it was preloaded. Raises RuntimeError if the
    extension cannot be built.
    """
    build = _sibling("build")
    try:
        extension = _built(torch, build, "hooks")
    except build.CannotBuild as error:
        raise RuntimeError(str(error)) from None

    def begin():
        missed = extension.begin_block(
            library, torch.__version__,
            _settings["operators"], _settings["tensors"], _settings["allocations"],
            _settings["frames"] if _settings["stacks"] else 0,
            bool(torch.version.cuda or torch.version.hip),
            torch.nn.Module.__call__.__code__ if _settings["modules"] else None,
            _Modules(extension),
        )  # fmt: skip
        if missed is None:
            raise RuntimeError("this process is not profiled")
        atexit.register(extension.stop_sampler)
        roles = _follow_roles(torch, extension) if _settings["tensors"] else []

        def end():
            for handle in roles:
                handle.remove()
            extension.end_block(not library)

        return end, missed

    return begin


_settings = json.loads(settings)
if not _settings.get("block"):
    sys.meta_path.insert(0, _AfterImport("torch", _follow))
