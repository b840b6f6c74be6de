"""Launches the kernels of a cubin made of tests/data/sass/stalls.cu, each with many blocks.

    python launch_stalls.py CUBIN [LAUNCHES]

Every kernel has its own input, so that its loads read one allocation; the output is another.
"""

from __future__ import annotations

import ctypes
import sys

BLOCKS, THREADS = 2048, 256
FLOATS = 1 << 24
U64 = ctypes.c_uint64
FLOAT32 = 7  # CU_TENSOR_MAP_DATA_TYPE_FLOAT32

driver = ctypes.CDLL("libcuda.so.1")


def check(result: int) -> None:
    """Raises RuntimeError unless a call succeeded."""
    if result:
        raise RuntimeError(f"the driver returned {result}")


def allocate(bytes: int, value: int = 0) -> U64:
    """Device memory whose 32-bit words have a value."""
    address = U64()
    check(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(bytes)))
    check(driver.cuMemsetD32_v2(address, ctypes.c_uint(value), ctypes.c_size_t(bytes // 4)))
    return address


def tensor_map(address: U64) -> ctypes.Array[U64]:
    """A map of a matrix of 256 x 256 floats with boxes of 16 x 16."""
    room = (U64 * 24)()
    at = -ctypes.addressof(room) % 64 // 8
    found = (U64 * 16).from_buffer(room, 8 * at)
    check(
        driver.cuTensorMapEncodeTiled(
            found, FLOAT32, 2, address, (U64 * 2)(256, 256), (U64 * 1)(1024),
            (ctypes.c_uint32 * 2)(16, 16), (ctypes.c_uint32 * 2)(1, 1), 0, 0, 0, 0,
        )
    )  # fmt: skip
    return found


def main() -> None:
    """Launch everything that the module has."""
    device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    check(driver.cuInit(0))
    check(driver.cuDeviceGet(ctypes.byref(device), 0))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(driver.cuCtxSetCurrent(context))
    check(driver.cuModuleLoad(ctypes.byref(module), sys.argv[1].encode()))
    launches = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    out, n = allocate(4 * FLOATS), ctypes.c_int(64)
    a, b = allocate(4 * FLOATS), allocate(4 * FLOATS)
    kernels = {
        "pointer_chase": (allocate(4 * FLOATS), out, n),
        "dependent_loads": (a, b, out),
        "two_loads_one_use": (a, b, out),
        "load_to_address": (a, out),
        "shared_then_global": (a, out),
        "predicated": (a, out, ctypes.c_int(THREADS)),
        "loop_carried": (a, out, n),
        "pipelined": (a, out, n),
        "atomics": (allocate(4 * FLOATS), out),
        "divergent": (a, b, out),
        "copy_async": (a, out),
        "tensor_copy": None,
    }
    for name, arguments in kernels.items():
        function = ctypes.c_void_p()
        if driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()):
            continue  # not for this architecture
        given = (tensor_map(a), out) if arguments is None else arguments
        pointers = (ctypes.c_void_p * len(given))(*map(ctypes.addressof, given))
        threads = 128 if name.startswith("copy_async") else THREADS
        for _ in range(launches):
            check(
                driver.cuLaunchKernel(
                    function, BLOCKS, 1, 1, threads, 1, 1, 0, None, pointers, None
                )
            )
    check(driver.cuCtxSynchronize())
    print("done")


if __name__ == "__main__":
    main()
