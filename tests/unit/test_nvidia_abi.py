"""Our declarations of NVIDIA's Sanitizer API against the vendor's own headers.

The headers come from the wheels nvidia-cuda-sanitizer-api and nvidia-cuda-runtime (cuda.h), or
from a toolkit.  Nothing of them is kept: a C program of assertions is compiled and thrown away.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.nvidia_headers import headers, toolkits
from tests.support.places import ROOT

SOURCES = ROOT / "shim" / "backends" / "nvidia"

#: ours -> (theirs, {our field: their field, or their fields in a row}); _13_1: since 13.1.
STRUCTS: dict[str, tuple[str, dict[str, str]]] = {
    "api": (
        "Sanitizer_CallbackData",
        {
            "site": "callbackSite",
            "function": "functionName",
            "arguments": "functionParams",
            "result": "functionReturnValue",
            "symbol": "symbolName",
            "context": "context",
        },
    ),
    "context": ("Sanitizer_ResourceContextData", {"context": "context", "device": "device"}),
    "stream": (
        "Sanitizer_ResourceStreamData",
        {"context": "context", "stream": "stream", "unique": "hStream"},
    ),
    "event": (
        "Sanitizer_EventData",
        {"event": "event", "context": "context", "stream": "stream"},
    ),
    "module": (
        "Sanitizer_ResourceModuleData",
        {"context": "context", "module": "module", "bytes": "cubinSize", "cubin": "pCubin"},
    ),
    "memory": (
        "Sanitizer_ResourceMemoryData",
        {
            "address": "address",
            "bytes": "size",
            "context": "context",
            "device": "device",
            "stream": "stream",
            "unique_stream": "hStream",
            "pool": "memoryPool",
            "flags": "flags",
            "permissions": "permissions",
            "visibility": "visibility",
            "source_device": "sourceDevice",
        },
    ),
    "range": ("Sanitizer_ResourceVirtualRange", {"address": "address", "bytes": "size"}),
    "array": ("Sanitizer_ResourceArrayData", {"context": "context", "array": "hArray"}),
    "sync": ("Sanitizer_SynchronizeData", {"context": "context", "stream": "stream"}),
    "launch": (
        "Sanitizer_LaunchData",
        {
            "context": "context",
            "stream": "stream",
            "unique_stream": "hStream",
            "module": "module",
            "function": "function",
            "name": "functionName",
            "grid": "gridDim_x gridDim_y gridDim_z",
            "block": "blockDim_x blockDim_y blockDim_z",
            "cluster": "clusterDim_x clusterDim_y clusterDim_z",
            "grid_id": "gridId",
            "launch": "hLaunch",
            "device": "device",
            "api_context": "apiContext",
            "api_stream": "apiStream",
            "api_unique_stream": "hApiStream",
        },
    ),
    "memcpy": (
        "Sanitizer_MemcpyData",
        {
            "source_context": "srcContext",
            "destination_context": "dstContext",
            "source_stream": "srcStream",
            "source_unique_stream": "hSrcStream",
            "destination_stream": "dstStream",
            "destination_unique_stream": "hDstStream",
            "source": "srcAddress",
            "destination": "dstAddress",
            "bytes": "size",
            "width": "width",
            "height": "height",
            "depth": "depth",
            "source_pitch": "srcPitch",
            "destination_pitch": "dstPitch",
            "async": "isAsync",
            "direction": "direction",
            "api_context": "apiContext",
            "api_stream": "apiStream",
            "api_unique_stream": "hApiStream",
        },
    ),
    "memset": (
        "Sanitizer_MemsetData",
        {
            "context": "context",
            "stream": "stream",
            "unique_stream": "hStream",
            "address": "address",
            "width": "width",
            "height": "height",
            "pitch": "pitch",
            "element": "elementSize",
            "value": "value",
            "async": "isAsync",
        },
    ),
    "attach": (
        "Sanitizer_UvmData",
        {
            "context": "context",
            "visibility": "visibility",
            "stream": "stream",
            "unique_stream": "hStream",
            "address": "address",
        },
    ),
    "node": (
        "Sanitizer_GraphNodeLaunchData",
        {
            "graph": "graphExec",
            "launch_id": "launchId",
            "node": "node",
            "type": "nodeType",
            "freed": "memFreeAddress",
            "upload": "isGraphUpload",
        },
    ),
    "graph": (
        "Sanitizer_GraphLaunchData",
        {
            "context": "context",
            "stream": "stream",
            "unique_stream": "hStream",
            "graph": "graphExec",
            "upload": "isGraphUpload",
        },
    ),
    "external": (
        "Sanitizer_ExternalMemoryData",
        {
            "context": "context",
            "device": "device",
            "memory": "extMemory",
            "address": "address",
            "bytes": "size",
        },
    ),
    "location": ("CUmemLocation", {"type": "type", "id": "id"}),
    "launch_kernel": (
        "cuLaunchKernel_params",
        {
            "function": "f",
            "config.grid": "gridDimX gridDimY gridDimZ",
            "config.block": "blockDimX blockDimY blockDimZ",
        },
    ),
    "launch_config": (
        "CUlaunchConfig",
        {
            "grid": "gridDimX gridDimY gridDimZ",
            "block": "blockDimX blockDimY blockDimZ",
        },
    ),
    "launch_kernel_ex": ("cuLaunchKernelEx_params", {"config": "config", "function": "f"}),
    "launch_graph": ("cuGraphLaunch_params", {"graph": "hGraph"}),
    "prefetch": (
        "cuMemPrefetchAsync_params",
        {"address": "devPtr", "bytes": "count", "device": "dstDevice", "stream": "hStream"},
    ),
    "prefetch_v2": (
        "cuMemPrefetchAsync_v2_params",
        {
            "address": "devPtr",
            "bytes": "count",
            "location": "location",
            "flags": "flags",
            "stream": "hStream",
        },
    ),
    "advise": (
        "cuMemAdvise_params",
        {"address": "devPtr", "bytes": "count", "advice": "advice", "device": "device"},
    ),
    "advise_v2": (
        "cuMemAdvise_v2_params",
        {"address": "devPtr", "bytes": "count", "advice": "advice", "location": "location"},
    ),
}
GREEN = {"context": "greenContext", "stream": "greenContext", "event": "greenCtx"}
#: Structs that we declare completely, so that their sizes must be equal too.
WHOLE = {"api", "memory", "range", "memcpy", "memset", "attach", "node", "graph", "external"}
PARAMETERS = ("prefetch", "prefetch_v2", "advise", "advise_v2")
#: Of arguments of which we declare only the beginning.
BEGINNINGS = ("launch_kernel", "launch_kernel_ex", "launch_graph")

_RESOURCE, _EVENTS = "SANITIZER_CBID_RESOURCE_", "SANITIZER_CBID_EVENTS_"
ENUMERATORS = {
    **{
        name: f"SANITIZER_CB_DOMAIN_{theirs}"
        for name, theirs in {
            "DRIVER": "DRIVER_API",
            "RUNTIME": "RUNTIME_API",
            "RESOURCE": "RESOURCE",
            "SYNCHRONIZE": "SYNCHRONIZE",
            "LAUNCH": "LAUNCH",
            "MEMCPY": "MEMCPY",
            "MEMSET": "MEMSET",
            "UVM": "UVM",
            "GRAPHS": "GRAPHS",
            "EVENTS": "EVENTS",
            "EXTERNAL": "EXTERNAL_MEMORY",
        }.items()
    },
    "CONTEXT_STARTING": _RESOURCE + "CONTEXT_CREATION_STARTING",
    "CONTEXT_CREATED": _RESOURCE + "CONTEXT_CREATION_FINISHED",
    "CONTEXT_DESTROYING": _RESOURCE + "CONTEXT_DESTROY_STARTING",
    "CONTEXT_DESTROYED": _RESOURCE + "CONTEXT_DESTROY_FINISHED",
    "STREAM_CREATED": _RESOURCE + "STREAM_CREATED",
    "STREAM_DESTROYING": _RESOURCE + "STREAM_DESTROY_STARTING",
    "MODULE_LOADED": _RESOURCE + "MODULE_LOADED",
    "MODULE_UNLOADING": _RESOURCE + "MODULE_UNLOAD_STARTING",
    "DEVICE_ALLOC": _RESOURCE + "DEVICE_MEMORY_ALLOC",
    "DEVICE_FREE": _RESOURCE + "DEVICE_MEMORY_FREE",
    "HOST_ALLOC": _RESOURCE + "HOST_MEMORY_ALLOC",
    "HOST_FREE": _RESOURCE + "HOST_MEMORY_FREE",
    "ASYNC_ALLOC": _RESOURCE + "MEMORY_ALLOC_ASYNC",
    "ASYNC_FREE": _RESOURCE + "MEMORY_FREE_ASYNC",
    "ARRAY_CREATED": _RESOURCE + "ARRAY_CREATED",
    "ARRAY_DESTROYED": _RESOURCE + "ARRAY_DESTROYED",
    "VIRTUAL_RESERVE": _RESOURCE + "VIRTUAL_RESERVE",
    "VIRTUAL_RELEASE": _RESOURCE + "VIRTUAL_RELEASE",
    "POOL_IMPORT": _RESOURCE + "MEMPOOL_IMPORT_POINTER",
    "STREAM_SYNCHRONIZED": "SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED",
    "CONTEXT_SYNCHRONIZED": "SANITIZER_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED",
    "LAUNCH_BEGIN": "SANITIZER_CBID_LAUNCH_BEGIN",
    "LAUNCH_SET_UP": "SANITIZER_CBID_LAUNCH_AFTER_SYSCALL_SETUP",
    "LAUNCH_END": "SANITIZER_CBID_LAUNCH_END",
    "MEMCPY_STARTING": "SANITIZER_CBID_MEMCPY_STARTING",
    "MEMSET_STARTING": "SANITIZER_CBID_MEMSET_STARTING",
    "ATTACH": "SANITIZER_CBID_UVM_ATTACH_MEM",
    "NODE_BEGIN": "SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN",
    "NODE_END": "SANITIZER_CBID_GRAPHS_NODE_LAUNCH_END",
    "GRAPH_BEGIN": "SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN",
    "GRAPH_END": "SANITIZER_CBID_GRAPHS_LAUNCH_END",
    "EVENT_CREATED": _EVENTS + "CREATED",
    "EVENT_DESTROYED": _EVENTS + "DESTROYED",
    "EVENT_RECORD": _EVENTS + "RECORD",
    "EVENT_STREAM_WAIT": _EVENTS + "STREAM_WAIT",
    "EVENT_SYNCHRONIZE": _EVENTS + "SYNCHRONIZE",
    "EXTERNAL_MAPPED": "SANITIZER_CBID_EXTERNAL_MEMORY_MAPPED",
    "PROFILER_START": "SANITIZER_CBID_DRIVER_API_cuProfilerStart",
    "PROFILER_STOP": "SANITIZER_CBID_DRIVER_API_cuProfilerStop",
    "ADVISE": "SANITIZER_CBID_DRIVER_API_cuMemAdvise",
    "ADVISE_V2": "SANITIZER_CBID_DRIVER_API_cuMemAdvise_v2",
    "PREFETCH": "SANITIZER_CBID_DRIVER_API_cuMemPrefetchAsync",
    "PREFETCH_PTSZ": "SANITIZER_CBID_DRIVER_API_cuMemPrefetchAsync_ptsz",
    "PREFETCH_V2": "SANITIZER_CBID_DRIVER_API_cuMemPrefetchAsync_v2",
    "PREFETCH_V2_PTSZ": "SANITIZER_CBID_DRIVER_API_cuMemPrefetchAsync_v2_ptsz",
    "LAUNCH_KERNEL": "SANITIZER_CBID_DRIVER_API_cuLaunchKernel",
    "LAUNCH_KERNEL_PTSZ": "SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz",
    "LAUNCH_COOPERATIVE": "SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel",
    "LAUNCH_COOPERATIVE_PTSZ": "SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel_ptsz",
    "LAUNCH_KERNEL_EX": "SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx",
    "LAUNCH_KERNEL_EX_PTSZ": "SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz",
    "LAUNCH_GRAPH": "SANITIZER_CBID_DRIVER_API_cuGraphLaunch",
    "LAUNCH_GRAPH_PTSZ": "SANITIZER_CBID_DRIVER_API_cuGraphLaunch_ptsz",
    "GRAPH_INSTANTIATE": "SANITIZER_CBID_DRIVER_API_cuGraphInstantiate",
    "GRAPH_INSTANTIATE_V2": "SANITIZER_CBID_DRIVER_API_cuGraphInstantiate_v2",
    "GRAPH_INSTANTIATE_WITH_FLAGS": "SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithFlags",
    "GRAPH_INSTANTIATE_WITH_PARAMS": "SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithParams",
    "GRAPH_INSTANTIATE_WITH_PARAMS_PTSZ": (
        "SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithParams_ptsz"
    ),
    "GRAPH_UPDATE": "SANITIZER_CBID_DRIVER_API_cuGraphExecUpdate",
    "GRAPH_UPDATE_V2": "SANITIZER_CBID_DRIVER_API_cuGraphExecUpdate_v2",
    "GRAPH_SET_KERNEL": "SANITIZER_CBID_DRIVER_API_cuGraphExecKernelNodeSetParams",
    "GRAPH_SET_KERNEL_V2": "SANITIZER_CBID_DRIVER_API_cuGraphExecKernelNodeSetParams_v2",
    "GRAPH_SET_NODE": "SANITIZER_CBID_DRIVER_API_cuGraphExecNodeSetParams",
    "BEGIN_CAPTURE": "SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture",
    "BEGIN_CAPTURE_PTSZ": "SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_ptsz",
    "BEGIN_CAPTURE_V2": "SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2",
    "BEGIN_CAPTURE_V2_PTSZ": "SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2_ptsz",
    "BEGIN_CAPTURE_TO": "SANITIZER_CBID_DRIVER_API_cuStreamBeginCaptureToGraph",
    "BEGIN_CAPTURE_TO_PTSZ": "SANITIZER_CBID_DRIVER_API_cuStreamBeginCaptureToGraph_ptsz",
    "END_CAPTURE": "SANITIZER_CBID_DRIVER_API_cuStreamEndCapture",
    "END_CAPTURE_PTSZ": "SANITIZER_CBID_DRIVER_API_cuStreamEndCapture_ptsz",
    "RUNTIME_PROFILER_START": "SANITIZER_CBID_RUNTIME_API_cudaProfilerStart",
    "RUNTIME_PROFILER_STOP": "SANITIZER_CBID_RUNTIME_API_cudaProfilerStop",
    "API_EXIT": "SANITIZER_API_EXIT",
    "MEMORY_MODULE": "SANITIZER_MEMORY_FLAG_MODULE",
    "MEMORY_MANAGED": "SANITIZER_MEMORY_FLAG_MANAGED",
    "MEMORY_PEER": "SANITIZER_MEMORY_FLAG_PEER",
    "MEMORY_RUNTIME": "SANITIZER_MEMORY_FLAG_CG_RUNTIME",
    "MEMORY_DYNAMIC": "SANITIZER_MEMORY_FLAG_CNP",
    "NODE_KERNEL": "CU_GRAPH_NODE_TYPE_KERNEL",
    "NODE_MEMCPY": "CU_GRAPH_NODE_TYPE_MEMCPY",
    "NODE_MEMSET": "CU_GRAPH_NODE_TYPE_MEMSET",
    "NODE_ALLOC": "CU_GRAPH_NODE_TYPE_MEM_ALLOC",
    "NODE_FREE": "CU_GRAPH_NODE_TYPE_MEM_FREE",
    "LOCATION_DEVICE": "CU_MEM_LOCATION_TYPE_DEVICE",
    "HOST_TO_DEVICE": "SANITIZER_MEMCPY_DIRECTION_HOST_TO_DEVICE",
    "DEVICE_TO_HOST": "SANITIZER_MEMCPY_DIRECTION_DEVICE_TO_HOST",
    "DEVICE_TO_DEVICE": "SANITIZER_MEMCPY_DIRECTION_DEVICE_TO_DEVICE",
    "MAX_LIMIT": "SANITIZER_ERROR_MAX_LIMIT_REACHED",
    "NOT_COMPATIBLE": "SANITIZER_ERROR_NOT_COMPATIBLE",
    "NOT_INITIALIZED": "SANITIZER_ERROR_NOT_INITIALIZED",
}
SINCE_13_1 = {
    "GREEN_CREATED": _RESOURCE + "GREEN_CONTEXT_CREATION_FINISHED",
    "GREEN_DESTROYING": _RESOURCE + "GREEN_CONTEXT_DESTROY_STARTING",
    "GREEN_SYNCHRONIZED": "SANITIZER_CBID_SYNCHRONIZE_GREEN_CONTEXT_SYNCHRONIZED",
    "CONTEXT_RECORD_EVENT": "SANITIZER_CBID_CTX_RECORD_EVENT",
    "GREEN_RECORD_EVENT": "SANITIZER_CBID_GREEN_CTX_RECORD_EVENT",
    "CONTEXT_WAIT_EVENT": "SANITIZER_CBID_CTX_WAIT_EVENT",
    "GREEN_WAIT_EVENT": "SANITIZER_CBID_GREEN_CTX_WAIT_EVENT",
    "CONTEXT_EVENT_SYNCHRONIZE": "SANITIZER_CBID_CTX_EVENT_SYNCHRONIZE",
}
SINCE_13_4 = {"MEMCPY_BATCH_ITEM": "SANITIZER_CBID_MEMCPY_BATCH_ITEM_STARTING"}
#: The first id of each domain that the source interprets as an unknown, newer library.
LIMITS = {
    "SANITIZER_CBID_RESOURCE_SIZE": 34,
    "SANITIZER_CBID_SYNCHRONIZE_SIZE": 4,
    "SANITIZER_CBID_LAUNCH_SIZE": 4,
    "SANITIZER_CBID_MEMCPY_SIZE": 6,
    "SANITIZER_CBID_MEMSET_SIZE": 2,
    "SANITIZER_CBID_UVM_SIZE": 2,
    "SANITIZER_CBID_GRAPHS_SIZE": 8,
    "SANITIZER_CBID_EVENTS_SIZE": 11,
    "SANITIZER_CBID_EXTERNAL_MEMORY_SIZE": 4,
}


SANITIZERS = headers("sanitizer_callbacks.h")
CUDAS = [
    directory for directory in headers("cuda.h") if (directory / "cuda.h").stat().st_size > 1000
]


def struct_text(header: str, name: str) -> str:
    """The definition of one struct, from a header too new for the installed cuda.h."""
    found = re.search(rf"typedef struct \w+ \{{[^}}]*\}} {name};", header)
    assert found, f"{name} is not in generated_cuda_meta.h"
    return found.group()


def assertions(sanitizer: Path) -> str:
    since_13_1 = "GREEN_CONTEXT" in (sanitizer / "sanitizer_callbacks.h").read_text()
    since_13_4 = "MEMCPY_BATCH" in (sanitizer / "sanitizer_callbacks.h").read_text()
    meta = (sanitizer / "generated_cuda_meta.h").read_text(errors="replace")
    lines = ["#include <stddef.h>", "#include <sanitizer.h>", '#include "sanitizer_abi.h"']
    # headers before 12.9 do not describe the arguments of the functions of CUDA 12.2
    undescribed = {n for n in PARAMETERS if n.endswith("_v2") and "cuMemAdvise_v2" not in meta}
    parameters = [name for name in PARAMETERS if name not in undescribed]
    lines += [struct_text(meta, STRUCTS[name][0]) for name in (*parameters, *BEGINNINGS)]

    def check(expression: str) -> None:
        lines.append(f'_Static_assert({expression}, "{expression}");')

    for name, (theirs, fields) in STRUCTS.items():
        ours = f"pasta_nv_{name}"
        if name in undescribed:
            continue
        if since_13_1 and name in GREEN:
            ours, fields = f"{ours}_13_1", {**fields, "green": GREEN[name]}
        for field, members in fields.items():
            member, *more = members.split()
            check(f"offsetof({ours}, {field}) == offsetof({theirs}, {member})")
            size = f"sizeof((({theirs} *)0)->{member}) * {1 + len(more)}"
            check(f"sizeof((({ours} *)0)->{field}) == {size}")
        if name in WHOLE or name in PARAMETERS:
            check(f"sizeof({ours}) == sizeof({theirs})")
    for inner, theirs in {
        "kernel": "launchData",
        "alloc": "memAllocData",
        "copy": "memcpyData",
    }.items():
        check(
            f"offsetof(pasta_nv_node, {inner}) == offsetof(Sanitizer_GraphNodeLaunchData, {theirs})"
        )
    names = ENUMERATORS | (SINCE_13_1 if since_13_1 else {}) | (SINCE_13_4 if since_13_4 else {})
    for name, theirs in names.items():
        check(f"(int)PASTA_NV_{name} == (int){theirs}")
    for theirs, limit in LIMITS.items():
        check(f"(int){theirs} <= {limit}")
    return "\n".join([*lines, "int main(void) { return 0; }", ""])


@pytest.mark.skipif(not SANITIZERS, reason="no sanitizer_callbacks.h: pip install the dev extra")
@pytest.mark.skipif(not CUDAS, reason="no cuda.h: pip install the dev extra")
@pytest.mark.parametrize("sanitizer", SANITIZERS, ids=str)
def test_declarations_match_the_vendors_headers(sanitizer: Path, tmp_path: Path) -> None:
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    source = tmp_path / "equal.c"
    source.write_text(assertions(sanitizer))
    for cuda in CUDAS:
        command = [compiler, "-std=gnu11", "-fsyntax-only", f"-I{SOURCES}", f"-I{sanitizer}"]
        done = subprocess.run([*command, f"-I{cuda}", source], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_every_declaration_is_checked() -> None:
    header = (SOURCES / "sanitizer_abi.h").read_text()
    declared = set(re.findall(r"\bPASTA_NV_([A-Z0-9_]+) =", header)) - {"DOMAINS"}
    assert declared == {*ENUMERATORS, *SINCE_13_1, *SINCE_13_4}
    structs = set(re.findall(r"typedef struct pasta_nv_(\w+) \{", header))
    assert structs == {*STRUCTS, *(f"{name}_13_1" for name in GREEN)}


class Library:
    """A real libsanitizer-public.so: subscribing and querying ids require no GPU."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        prototype = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
        )
        self.callback = prototype(lambda *_: None)
        self.subscriber = ctypes.c_void_p()
        status = self.library.sanitizerSubscribe(ctypes.byref(self.subscriber), self.callback, None)
        assert status == 0

    def accepts(self, domain: int, number: int) -> bool:
        return bool(self.library.sanitizerEnableCallback(0, self.subscriber, domain, number) == 0)


def libraries() -> list[Path]:
    found = (
        p for root in toolkits() if root.is_dir() for p in root.rglob("libsanitizer-public.so")
    )
    return list(dict.fromkeys(path.resolve() for path in found))


@pytest.mark.skipif(not libraries(), reason="no libsanitizer-public.so: pip install the dev extra")
@pytest.mark.parametrize("path", libraries(), ids=str)
def test_version_is_detected_by_accepted_callback_ids(path: Path) -> None:
    source = (SOURCES / "sanitizer.c").read_text()
    rows = re.findall(r'\{"([\d.]+)", (\d+), (\d+)\}', source)
    assert len(rows) >= 7
    library = Library(path)
    matching = [
        version
        for version, driver, runtime in rows
        if library.accepts(1, int(driver)) and not library.accepts(1, int(driver) + 1)
        if library.accepts(2, int(runtime)) and not library.accepts(2, int(runtime) + 1)
    ]
    assert len(matching) == 1, "a version that the table in nvidia_sanitizer.c does not have"


@pytest.mark.skipif(not libraries(), reason="no libsanitizer-public.so: pip install the dev extra")
@pytest.mark.parametrize("path", libraries(), ids=str)
def test_libraries_export_every_function(path: Path) -> None:
    symbols = re.findall(r'X\(\w+, "(\w+)"', (SOURCES / "sanitizer_abi.h").read_text())
    assert len(symbols) >= 20
    library = ctypes.CDLL(str(path))
    assert [symbol for symbol in symbols if not hasattr(library, symbol)] == []
