"""Our declarations of NVIDIA's CUPTI against the vendor's own headers and libraries.

They come from the wheels nvidia-cuda-cupti and nvidia-cuda-runtime (cuda.h), or from a toolkit.
Nothing of them is kept: a C program of assertions is compiled and thrown away.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pasta.backends.nvidia import DEFAULT_COUNTERS, FLOP_COUNTERS
from pasta.backends.nvidia.metrics import counters
from pasta.errors import MissingDependency
from tests.support.nvidia_headers import headers, toolkits
from tests.support.places import ROOT

SOURCES = ROOT / "shim" / "backends" / "nvidia"
HEADER = (SOURCES / "cupti_abi.h").read_text()

#: ours -> (theirs, {our field: their field, or their fields in a row}).
STRUCTS: dict[str, tuple[str, dict[str, str]]] = {
    "call": (
        "CUpti_CallbackData",
        {"context_id": "contextUid", "user": "correlationData", "correlation": "correlationId"},
    ),
    "resource": ("CUpti_ResourceData", {"context": "context", "more": "resourceDescriptor"}),
    "module": (
        "CUpti_ModuleResourceData",
        {"id": "moduleId", "bytes": "cubinSize", "cubin": "pCubin"},
    ),
    "graph": (
        "CUpti_GraphData",
        {
            "graph": "graph",
            "original_graph": "originalGraph",
            "node": "node",
            "original_node": "originalNode",
            "type": "nodeType",
            "dependency": "dependency",
            "executable": "graphExec",
        },
    ),
    "launch": (
        "cuLaunchKernel_params",
        {
            "function": "f",
            "grid": "gridDimX gridDimY gridDimZ",
            "block": "blockDimX blockDimY blockDimZ",
            "shared": "sharedMemBytes",
            "stream": "hStream",
            "parameters": "kernelParams",
            "extra": "extra",
        },
    ),
    "launch_ex": (
        "cuLaunchKernelEx_params",
        {"config": "config", "function": "f", "parameters": "kernelParams", "extra": "extra"},
    ),
    "config": (
        "CUlaunchConfig",
        {
            "grid": "gridDimX gridDimY gridDimZ",
            "block": "blockDimX blockDimY blockDimZ",
            "shared": "sharedMemBytes",
            "stream": "hStream",
            "attributes": "attrs",
            "count": "numAttrs",
        },
    ),
    "attribute": ("CUlaunchAttribute", {"id": "id", "value": "value"}),
    "copy_2d": (
        "CUDA_MEMCPY2D",
        {
            "source_x": "srcXInBytes",
            "source_y": "srcY",
            "source_type": "srcMemoryType",
            "source_host": "srcHost",
            "source_device": "srcDevice",
            "source_array": "srcArray",
            "source_pitch": "srcPitch",
            "destination_x": "dstXInBytes",
            "destination_y": "dstY",
            "destination_type": "dstMemoryType",
            "destination_host": "dstHost",
            "destination_device": "dstDevice",
            "destination_array": "dstArray",
            "destination_pitch": "dstPitch",
            "width": "WidthInBytes",
            "height": "Height",
        },
    ),
    "copy_3d": (
        "CUDA_MEMCPY3D_PEER",
        {
            "source_x": "srcXInBytes",
            "source_y": "srcY",
            "source_z": "srcZ",
            "source_lod": "srcLOD",
            "source_type": "srcMemoryType",
            "source_host": "srcHost",
            "source_device": "srcDevice",
            "source_array": "srcArray",
            "source_reserved": "srcContext",
            "source_pitch": "srcPitch",
            "source_height": "srcHeight",
            "destination_x": "dstXInBytes",
            "destination_y": "dstY",
            "destination_z": "dstZ",
            "destination_lod": "dstLOD",
            "destination_type": "dstMemoryType",
            "destination_host": "dstHost",
            "destination_device": "dstDevice",
            "destination_array": "dstArray",
            "destination_reserved": "dstContext",
            "destination_pitch": "dstPitch",
            "destination_height": "dstHeight",
            "width": "WidthInBytes",
            "height": "Height",
            "depth": "Depth",
        },
    ),
    "kernel": (
        "CUpti_ActivityKernel*",
        {
            "kind": "kind",
            "registers": "registersPerThread",
            "start": "start",
            "end": "end",
            "device": "deviceId",
            "context": "contextId",
            "stream": "streamId",
            "grid": "gridX gridY gridZ",
            "block": "blockX blockY blockZ",
            "shared_static": "staticSharedMemory",
            "shared_dynamic": "dynamicSharedMemory",
            "local": "localMemoryPerThread",
            "correlation": "correlationId",
            "name": "name",
            "queued": "queued",
            "submitted": "submitted",
            "launch_type": "launchType",
            "shared_executed": "sharedMemoryExecuted",
            "node": "graphNodeId",
            "graph": "graphId",
            "channel": "channelID",
            "channel_type": "channelType",
            "cluster": "clusterX clusterY clusterZ",
            "local_total_2": "localMemoryTotal_v2",
            "max_cluster": "maxPotentialClusterSize",
            "active_clusters": "maxActiveClusters",
            "from_device": "isDeviceLaunched",
            "priority": "priority",
            "source_graph": "sourceGraphId",
            "source_node": "sourceGraphNodeId",
        },
    ),
    "copy": (
        "CUpti_ActivityMemcpy*",
        {
            "kind": "kind",
            "direction": "copyKind",
            "source_kind": "srcKind",
            "destination_kind": "dstKind",
            "flags": "flags",
            "bytes": "bytes",
            "start": "start",
            "end": "end",
            "device": "deviceId",
            "context": "contextId",
            "stream": "streamId",
            "correlation": "correlationId",
            "node": "graphNodeId",
            "graph": "graphId",
            "channel": "channelID",
        },
    ),
    "peer_copy": (
        "CUpti_ActivityMemcpyPtoP*",
        {
            "kind": "kind",
            "direction": "copyKind",
            "flags": "flags",
            "bytes": "bytes",
            "start": "start",
            "end": "end",
            "device": "deviceId",
            "context": "contextId",
            "stream": "streamId",
            "source_device": "srcDeviceId",
            "destination_device": "dstDeviceId",
            "correlation": "correlationId",
            "node": "graphNodeId",
        },
    ),
    "set": (
        "CUpti_ActivityMemset*",
        {
            "kind": "kind",
            "value": "value",
            "bytes": "bytes",
            "start": "start",
            "end": "end",
            "device": "deviceId",
            "context": "contextId",
            "stream": "streamId",
            "correlation": "correlationId",
            "flags": "flags",
            "node": "graphNodeId",
        },
    ),
    "overhead": (
        "CUpti_ActivityOverhead*",
        {
            "kind": "kind",
            "what": "overheadKind",
            "object_kind": "objectKind",
            "process": "objectId.pt.processId",
            "thread": "objectId.pt.threadId",
            "start": "start",
            "end": "end",
        },
    ),
    "uvm": (
        "CUpti_ActivityUnifiedMemoryCounter*",
        {
            "kind": "kind",
            "what": "counterKind",
            "value": "value",
            "start": "start",
            "end": "end",
            "address": "address",
            "source": "srcId",
            "destination": "dstId",
            "stream": "streamId",
            "process": "processId",
            "flags": "flags",
        },
    ),
    "uvm_config": (
        "CUpti_ActivityUnifiedMemoryCounterConfig",
        {"scope": "scope", "what": "kind", "device": "deviceId", "enable": "enable"},
    ),
    "device": (
        "CUpti_ActivityDevice*",
        {
            "kind": "kind",
            "bandwidth": "globalMemoryBandwidth",
            "memory": "globalMemorySize",
            "l2": "l2CacheSize",
            "warp": "numThreadsPerWarp",
            "clock": "coreClockRate",
            "multiprocessors": "numMultiprocessors",
            "warps": "maxWarpsPerMultiprocessor",
            "blocks": "maxBlocksPerMultiprocessor",
            "shared": "maxSharedMemoryPerMultiprocessor",
            "registers": "maxRegistersPerMultiprocessor",
            "shared_per_block": "maxSharedMemoryPerBlock",
            "major": "computeCapabilityMajor",
            "minor": "computeCapabilityMinor",
            "id": "id",
            "uuid": "uuid",
            "name": "name",
            "visible": "isCudaVisible",
            "mig": "isMigEnabled",
            "mig_uuid": "migUuid",
        },
    ),
}
_PARAMETERS = {"size": "size", "unused": "pPriv", "context": "ctx"}
STRUCTS |= {
    "stall": (
        "CUpti_PCSamplingStallReason",
        {"reason": "pcSamplingStallReasonIndex", "samples": "samples"},
    ),
    "pc": (
        "CUpti_PCSamplingPCData",
        {
            "size": "size",
            "crc": "cubinCrc",
            "offset": "pcOffset",
            "function": "functionIndex",
            "name": "functionName",
            "stall_count": "stallReasonCount",
            "stalls": "stallReason",
            "correlation": "correlationId",
        },
    ),
    "samples": (
        "CUpti_PCSamplingData",
        {
            "size": "size",
            "room": "collectNumPcs",
            "total": "totalSamples",
            "dropped": "droppedSamples",
            "count": "totalNumPcs",
            "remaining": "remainingNumPcs",
            "range": "rangeId",
            "pcs": "pPcData",
            "others": "nonUsrKernelsTotalSamples",
            "buffer_full": "hardwareBufferFull",
        },
    ),
    "sampling_attribute": (
        "CUpti_PCSamplingConfigurationInfo",
        {"type": "attributeType", "status": "attributeStatus", "value": "attributeData"},
    ),
    "sampling_config": (
        "CUpti_PCSamplingConfigurationInfoParams",
        {
            **_PARAMETERS,
            "count": "numAttributes",
            "attributes": "pPCSamplingConfigurationInfo",
        },
    ),
    "sampling": ("CUpti_PCSamplingEnableParams", _PARAMETERS),
    "get_samples": (
        "CUpti_PCSamplingGetDataParams",
        {**_PARAMETERS, "samples": "pcSamplingData"},
    ),
    "reason_count": (
        "CUpti_PCSamplingGetNumStallReasonsParams",
        {**_PARAMETERS, "count": "numStallReasons"},
    ),
    "reasons": (
        "CUpti_PCSamplingGetStallReasonsParams",
        {
            **_PARAMETERS,
            "count": "numStallReasons",
            "indices": "stallReasonIndex",
            "names": "stallReasons",
        },
    ),
}
_OF_OBJECT = {"size": "structSize", "unused": "pPriv", "object": "pHostObject"}
_OF_RANGES = {**_OF_OBJECT, "object": "pRangeProfilerObject"}
_NAMES = {"names": "pMetricNames", "count": "numMetrics"}
STRUCTS |= {
    "profiler_initialize": (
        "CUpti_Profiler_Initialize_Params",
        {"size": "structSize", "unused": "pPriv"},
    ),
    "chip": ("CUpti_Device_GetChipName_Params", {"device": "deviceIndex", "name": "pChipName"}),
    "availability": (
        "CUpti_Profiler_GetCounterAvailability_Params",
        {
            "context": "ctx",
            "bytes": "counterAvailabilityImageSize",
            "image": "pCounterAvailabilityImage",
        },
    ),
    "host": (
        "CUpti_Profiler_Host_Initialize_Params",
        {
            **_OF_OBJECT,
            "type": "profilerType",
            "chip": "pChipName",
            "availability": "pCounterAvailabilityImage",
        },
    ),
    "metrics": (
        "CUpti_Profiler_Host_ConfigAddMetrics_Params",
        {**_OF_OBJECT, "names": "ppMetricNames", "count": "numMetrics"},
    ),
    "image_size": (
        "CUpti_Profiler_Host_GetConfigImageSize_Params",
        {**_OF_OBJECT, "bytes": "configImageSize"},
    ),
    "image": (
        "CUpti_Profiler_Host_GetConfigImage_Params",
        {**_OF_OBJECT, "bytes": "configImageSize", "image": "pConfigImage"},
    ),
    "passes": (
        "CUpti_Profiler_Host_GetNumOfPasses_Params",
        {"bytes": "configImageSize", "image": "pConfigImage", "passes": "numOfPasses"},
    ),
    "values": (
        "CUpti_Profiler_Host_EvaluateToGpuValues_Params",
        {
            **_OF_OBJECT,
            "image": "pCounterDataImage",
            "bytes": "counterDataImageSize",
            "range": "rangeIndex",
            "names": "ppMetricNames",
            "count": "numMetrics",
            "values": "pMetricValues",
        },
    ),
    "profiler": ("CUpti_RangeProfiler_Start_Params", _OF_RANGES),
    "enable_ranges": ("CUpti_RangeProfiler_Enable_Params", {**_OF_RANGES, "context": "ctx"}),
    "data_size": (
        "CUpti_RangeProfiler_GetCounterDataSize_Params",
        {
            **_OF_RANGES,
            **_NAMES,
            "ranges": "maxNumOfRanges",
            "nodes": "maxNumRangeTreeNodes",
            "bytes": "counterDataSize",
        },
    ),
    "range_config": (
        "CUpti_RangeProfiler_SetConfig_Params",
        {
            **_OF_RANGES,
            "config_bytes": "configSize",
            "config": "pConfig",
            "data_bytes": "counterDataImageSize",
            "data": "pCounterDataImage",
            "range": "range",
            "replay": "replayMode",
            "max_ranges": "maxRangesPerPass",
            "levels": "numNestingLevels",
            "first_level": "minNestingLevel",
            "pass": "passIndex",
            "level": "targetNestingLevel",
        },
    ),
    "stop_ranges": (
        "CUpti_RangeProfiler_Stop_Params",
        {
            **_OF_RANGES,
            "pass": "passIndex",
            "level": "targetNestingLevel",
            "complete": "isAllPassSubmitted",
        },
    ),
    "push_range": ("CUpti_RangeProfiler_PushRange_Params", {**_OF_RANGES, "name": "pRangeName"}),
    "decode": (
        "CUpti_RangeProfiler_DecodeData_Params",
        {**_OF_RANGES, "dropped": "numOfRangeDropped"},
    ),
    "range_count": (
        "CUpti_RangeProfiler_GetCounterDataInfo_Params",
        {
            "image": "pCounterDataImage",
            "bytes": "counterDataImageSize",
            "ranges": "numTotalRanges",
        },
    ),
}
_OF_CONTEXT = {"size": "structSize", "unused": "pPriv", "context": "ctx"}
_RECORDS = {"records": "numOfPatchedInstructionRecords", "instances": "numOfInstances"}
STRUCTS |= {
    "sass_properties": (
        "CUpti_SassMetrics_GetProperties_Params",
        {"chip": "pChipName", "name": "pMetricName", "id": "metric.metricId"},
    ),
    "sass_metric": (
        "CUpti_SassMetrics_Config",
        {"id": "metricId", "granularity": "outputGranularity"},
    ),
    "sass_config": (
        "CUpti_SassMetricsSetConfig_Params",
        {"count": "numOfMetricConfig", "metrics": "pConfigs", "device": "deviceIndex"},
    ),
    "sass_enable": (
        "CUpti_SassMetricsEnable_Params",
        {**_OF_CONTEXT, "lazily": "enableLazyPatching"},
    ),
    "sass_disable": (
        "CUpti_SassMetricsDisable_Params",
        {**_OF_CONTEXT, "dropped": "numOfDroppedRecords"},
    ),
    "sass_count": ("CUpti_SassMetricsGetDataProperties_Params", {**_OF_CONTEXT, **_RECORDS}),
    "sass_value": ("CUpti_SassMetrics_InstanceValue", {"id": "metricId", "value": "value"}),
    "sass_data": (
        "CUpti_SassMetrics_Data",
        {
            "crc": "cubinCrc",
            "function": "functionIndex",
            "name": "functionName",
            "pc": "pcOffset",
            "values": "pInstanceValues",
        },
    ),
    "sass_flush": (
        "CUpti_SassMetricsFlushData_Params",
        {**_OF_CONTEXT, **_RECORDS, "data": "pMetricsData"},
    ),
}
#: Structs of which the vendor has several of one layout, which ours stands for.
ALIKE = {
    "profiler": [
        "CUpti_RangeProfiler_Disable_Params", "CUpti_RangeProfiler_PopRange_Params",
        "CUpti_Profiler_Host_Deinitialize_Params",
    ],
    "image": ["CUpti_RangeProfiler_CounterDataImage_Initialize_Params"],
}  # fmt: skip
#: Structs to which no version has added: the last field, up to which the library is told the size.
TOLD = {
    "range_config": "level", "stop_ranges": "complete",
    "data_size": "bytes", "values": "values", "passes": "passes", "decode": "dropped",
    "range_count": "ranges", "push_range": "name", "metrics": "count", "image": "image",
    "image_size": "bytes", "profiler": "object", "chip": "name", "profiler_initialize": "unused",
}  # fmt: skip
#: Structs that the library writes, or whose size it is told, whole.
WHOLE = {
    "stall": ["CUpti_PCSamplingStallReason"],
    "pc": ["CUpti_PCSamplingPCData"],
    "samples": ["CUpti_PCSamplingData"],
    "sampling_attribute": ["CUpti_PCSamplingConfigurationInfo"],
    "sampling_config": ["CUpti_PCSamplingConfigurationInfoParams"],
    "sampling": [f"CUpti_PCSampling{do}Params" for do in ("Enable", "Disable", "Start", "Stop")],
    "get_samples": ["CUpti_PCSamplingGetDataParams"],
    "reason_count": ["CUpti_PCSamplingGetNumStallReasonsParams"],
    "reasons": ["CUpti_PCSamplingGetStallReasonsParams"],
}
#: Fields that not every version has.
LATER = {"kernel": {"priority", "from_device", "source_graph", "source_node"}}
#: Fields whose types differ in size, of which the source reads the first bytes.
LARGER = {("attribute", "value"), ("sampling_attribute", "value")}
_RESOURCE, _KIND = "CUPTI_CBID_RESOURCE_", "CUPTI_ACTIVITY_KIND_"
_OVERHEAD = "CUPTI_ACTIVITY_OVERHEAD_"
_UVM = "CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_"
_SAMPLING = "CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_"
_MODE = "CUPTI_PC_SAMPLING_COLLECTION_MODE_"
ENUMERATORS = {
    "OF_DEVICE": "CUPTI_SASS_METRICS_OUTPUT_GRANULARITY_GPU",
    "DRIVER": "CUPTI_CB_DOMAIN_DRIVER_API",
    "RESOURCE": "CUPTI_CB_DOMAIN_RESOURCE",
    "CONTEXT_CREATED": _RESOURCE + "CONTEXT_CREATED",
    "CONTEXT_DESTROYING": _RESOURCE + "CONTEXT_DESTROY_STARTING",
    "STREAM_CREATED": _RESOURCE + "STREAM_CREATED",
    "STREAM_DESTROYING": _RESOURCE + "STREAM_DESTROY_STARTING",
    "MODULE_LOADED": _RESOURCE + "MODULE_LOADED",
    "MODULE_UNLOADING": _RESOURCE + "MODULE_UNLOAD_STARTING",
    "NODE_CREATED": _RESOURCE + "GRAPHNODE_CREATED",
    "NODE_CLONED": _RESOURCE + "GRAPHNODE_CLONED",
    "COPY": _KIND + "MEMCPY",
    "SET": _KIND + "MEMSET",
    "DEVICE": _KIND + "DEVICE",
    "KERNEL": _KIND + "CONCURRENT_KERNEL",
    "OVERHEAD": _KIND + "OVERHEAD",
    "PEER_COPY": _KIND + "MEMCPY2",
    "UVM": _KIND + "UNIFIED_MEMORY_COUNTER",
    "SERIAL_KERNEL": _KIND + "KERNEL",
    "DRIVER_CALL": _KIND + "DRIVER",
    "RUNTIME_CALL": _KIND + "RUNTIME",
    "MARKER": _KIND + "MARKER",
    "ENVIRONMENT": _KIND + "ENVIRONMENT",
    "EVENT": _KIND + "CUDA_EVENT",
    "SYNCHRONIZATION": _KIND + "SYNCHRONIZATION",
    "INTERNAL_CALL": _KIND + "INTERNAL_LAUNCH_API",
    "MEMORY": _KIND + "MEMORY2",
    "POOL": _KIND + "MEMORY_POOL",
    "GRAPH_TRACE": _KIND + "GRAPH_TRACE",
    "JIT": _KIND + "JIT",
    "FLUSH_FORCED": "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED",
    "INVALID_PARAMETER": "CUPTI_ERROR_INVALID_PARAMETER",
    "INVALID_OPERATION": "CUPTI_ERROR_INVALID_OPERATION",
    "OUT_OF_MEMORY": "CUPTI_ERROR_OUT_OF_MEMORY",
    "HARDWARE_BUSY": "CUPTI_ERROR_HARDWARE_BUSY",
    "NOT_SUPPORTED": "CUPTI_ERROR_NOT_SUPPORTED",
    "VIRTUAL_DEVICE": "CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED",
    "HYPERVISOR": "CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
    "CONFIDENTIAL": "CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED",
    "MIG_DEVICE": "CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED",
    "WSL_DEVICE": "CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED",
    "LAST_RECORD": "CUPTI_ERROR_MAX_LIMIT_REACHED",
    "NOT_COMPATIBLE": "CUPTI_ERROR_NOT_COMPATIBLE",
    "NOT_INITIALIZED": "CUPTI_ERROR_NOT_INITIALIZED",
    "NO_PRIVILEGES": "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    "OTHER_SUBSCRIBER": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
    "CLUSTER": "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
    "HOST": "CU_MEMORYTYPE_HOST",
    "ON_DEVICE": "CU_MEMORYTYPE_DEVICE",
    "ARRAY": "CU_MEMORYTYPE_ARRAY",
    "UNIFIED": "CU_MEMORYTYPE_UNIFIED",
    "ASYNC": "CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC",
    **{
        name: f"CUPTI_ACTIVITY_MEMCPY_KIND_{name}"
        for name in ("HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH", "PTOP")
    },
    "OF_THREAD": "CUPTI_ACTIVITY_OBJECT_THREAD",
    "OVERHEAD_COMPILER": _OVERHEAD + "DRIVER_COMPILER",
    "OVERHEAD_FLUSH": _OVERHEAD + "CUPTI_BUFFER_FLUSH",
    "OVERHEAD_INSTRUMENTATION": _OVERHEAD + "CUPTI_INSTRUMENTATION",
    "OVERHEAD_RESOURCE": _OVERHEAD + "CUPTI_RESOURCE",
    "OVERHEAD_MODULE": _OVERHEAD + "RUNTIME_TRIGGERED_MODULE_LOADING",
    "OVERHEAD_FUNCTION": _OVERHEAD + "LAZY_FUNCTION_LOADING",
    "OVERHEAD_COMMANDS_FULL": _OVERHEAD + "COMMAND_BUFFER_FULL",
    "OVERHEAD_BUFFER_REQUEST": _OVERHEAD + "ACTIVITY_BUFFER_REQUEST",
    "OVERHEAD_UVM": _OVERHEAD + "UVM_ACTIVITY_INIT",
    "UVM_ALL_DEVICES": "CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_ALL_DEVICES",
    "UVM_HTOD": _UVM + "BYTES_TRANSFER_HTOD",
    "UVM_DTOH": _UVM + "BYTES_TRANSFER_DTOH",
    "UVM_CPU_FAULTS": _UVM + "CPU_PAGE_FAULT_COUNT",
    "UVM_GPU_FAULT": _UVM + "GPU_PAGE_FAULT",
    "UVM_THRASHING": _UVM + "THRASHING",
    "UVM_THROTTLING": _UVM + "THROTTLING",
    "UVM_REMOTE_MAP": _UVM + "REMOTE_MAP",
    "UVM_DTOD": _UVM + "BYTES_TRANSFER_DTOD",
    "SAMPLING_PERIOD": _SAMPLING + "SAMPLING_PERIOD",
    "SAMPLING_SCRATCH": _SAMPLING + "SCRATCH_BUFFER_SIZE",
    "SAMPLING_HARDWARE": _SAMPLING + "HARDWARE_BUFFER_SIZE",
    "SAMPLING_MODE": _SAMPLING + "COLLECTION_MODE",
    "SAMPLING_STARTED": _SAMPLING + "ENABLE_START_STOP_CONTROL",
    "SAMPLING_DATA": _SAMPLING + "SAMPLING_DATA_BUFFER",
    "SAMPLING_SLEEP": _SAMPLING + "WORKER_THREAD_PERIODIC_SLEEP_SPAN",
    "SAMPLING_CONTINUOUS": _MODE + "CONTINUOUS",
    "SAMPLING_SERIALIZED": _MODE + "KERNEL_SERIALIZED",
    "REASON_NAME": "CUPTI_STALL_REASON_STRING_SIZE",
    "RANGE_PROFILER": "CUPTI_PROFILER_TYPE_RANGE_PROFILER",
    "AUTO_RANGE": "CUPTI_AutoRange",
    "USER_RANGE": "CUPTI_UserRange",
    "KERNEL_REPLAY": "CUPTI_KernelReplay",
    "USER_REPLAY": "CUPTI_UserReplay",
}
#: Enumerators that not every version has.
LATER_ENUMERATORS = {"MIG_DEVICE", "WSL_DEVICE"}
#: Not the vendor's.
#: CU_LAUNCH_PARAM_* are pointers in cuda.h, which no constant expression has.
OWN = {"12_6", "13_1", "13_4", "MAX_CALL", "EXTRA_BUFFER", "EXTRA_BYTES"}
#: Arguments that the source reads as 64-bit words: call -> fields in a row ("": not read).
_LINEAR = {
    f"cuMemcpy{way}{kind}": f"{to} {source} ByteCount{' hStream' * bool(kind)}".replace("_v2", "")
    for way, to, source in (
        ("HtoD", "dstDevice", "srcHost"),
        ("DtoH", "dstHost", "srcDevice"),
        ("DtoD", "dstDevice", "srcDevice"),
    )
    for kind in ("", "Async")
}
ARGUMENTS = {
    **{f"{name}_v2": fields for name, fields in _LINEAR.items()},
    "cuMemcpy": "dst src ByteCount",
    "cuMemcpyAsync": "dst src ByteCount hStream",
    "cuMemcpyPeer": "dstDevice dstContext srcDevice srcContext ByteCount",
    "cuMemcpyPeerAsync": "dstDevice dstContext srcDevice srcContext ByteCount hStream",
    "cuMemcpyDtoA_v2": "dstArray dstOffset srcDevice ByteCount",
    "cuMemcpyHtoA_v2": "dstArray dstOffset srcHost ByteCount",
    "cuMemcpyHtoAAsync_v2": "dstArray dstOffset srcHost ByteCount hStream",
    "cuMemcpyAtoD_v2": "dstDevice srcArray srcOffset ByteCount",
    "cuMemcpyAtoH_v2": "dstHost srcArray srcOffset ByteCount",
    "cuMemcpyAtoHAsync_v2": "dstHost srcArray srcOffset ByteCount hStream",
    "cuMemcpyAtoA_v2": "dstArray dstOffset srcArray srcOffset ByteCount",
    **{f"cuMemcpy{n}_v2": "pCopy" for n in ("2D", "2DUnaligned", "3D")},
    **{f"cuMemcpy{n}Async_v2": "pCopy hStream" for n in ("2D", "3D")},
    "cuMemcpy3DPeer": "pCopy",
    "cuMemcpy3DPeerAsync": "pCopy hStream",
    **{f"cuMemsetD{n}_v2": f"dstDevice {v} N" for n, v in ((8, "uc"), (16, "us"), (32, "ui"))},
    **{
        f"cuMemsetD{n}Async": f"dstDevice {v} N hStream"
        for n, v in ((8, "uc"), (16, "us"), (32, "ui"))
    },
    **{
        f"cuMemsetD2D{n}_v2": f"dstDevice dstPitch {v} Width Height"
        for n, v in ((8, "uc"), (16, "us"), (32, "ui"))
    },
    **{
        f"cuMemsetD2D{n}Async": f"dstDevice dstPitch {v} Width Height hStream"
        for n, v in ((8, "uc"), (16, "us"), (32, "ui"))
    },
    "cuMemAlloc_v2": "dptr bytesize",
    "cuMemAllocPitch_v2": "dptr pPitch WidthInBytes Height",
    "cuMemAllocManaged": "dptr bytesize",
    "cuMemAllocHost_v2": "pp bytesize",
    "cuMemHostAlloc": "pp bytesize",
    "cuMemHostRegister": "p bytesize",
    "cuMemHostRegister_v2": "p bytesize",
    "cuMemHostUnregister": "p",
    "cuMemAllocAsync": "dptr bytesize hStream",
    "cuMemAllocFromPoolAsync": "dptr bytesize pool hStream",
    "cuMemFree_v2": "dptr",
    "cuMemFreeHost": "p",
    "cuMemFreeAsync": "dptr hStream",
    "cuMemAddressReserve": "ptr size",
    "cuMemAddressFree": "ptr size",
    "cuMemMap": "ptr size",
    "cuMemUnmap": "ptr size",
    "cuArrayCreate_v2": "pHandle",
    "cuArray3DCreate_v2": "pHandle",
    "cuArrayDestroy": "hArray",
    "cuIpcOpenMemHandle": "pdptr",
    "cuIpcOpenMemHandle_v2": "pdptr",
    "cuIpcCloseMemHandle": "dptr",
    "cuExternalMemoryGetMappedBuffer": "devPtr extMem bufferDesc",
    "cuStreamSynchronize": "hStream",
    "cuCtxSynchronize_v2": "ctx",
    "cuEventSynchronize": "hEvent",
    "cuEventCreate": "phEvent",
    "cuEventDestroy": "hEvent",
    "cuEventDestroy_v2": "hEvent",
    "cuEventRecord": "hEvent hStream",
    "cuEventRecordWithFlags": "hEvent hStream",
    "cuStreamWaitEvent": "hStream hEvent",
    "cuStreamAttachMemAsync": "hStream dptr length flags",
    "cuGraphLaunch": "hGraph|hGraphExec hStream",
}
#: Calls whose arguments the source reads by a struct, or not at all, or reads as the Sanitizer's.
OTHERS = {
    "cuCtxSynchronize", "cuLaunchKernel", "cuLaunchCooperativeKernel", "cuLaunchKernelEx",
    "cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph",
    "cuStreamEndCapture", "cuMemAdvise", "cuMemAdvise_v2", "cuMemPrefetchAsync",
    "cuMemPrefetchAsync_v2", "cuProfilerStart", "cuProfilerStop", "cuModuleLoad",
    "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuModuleUnload",
    "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryUnload", "cuLibraryGetModule",
    "cuModuleGetFunction", "cuLibraryGetKernel", "cuKernelGetFunction", "cuFuncLoad",
}  # fmt: skip
CALLS = {name: int(id) for id, name in re.findall(r"\bX\((\d+), (cu\w+)\)", HEADER)}

#: By struct, members with times and their offsets in bytes: `times_at` in cupti_guest.c, besides
#: those of our own structs.
TIMES = {
    "CUpti_ActivityAPI": {"start": 8, "end": 16},
    "CUpti_ActivityMemcpy*": {"start": 16, "end": 24},
    "CUpti_ActivityMemcpyPtoP*": {"start": 16, "end": 24},
    "CUpti_ActivityMemset*": {"start": 16, "end": 24},
    "CUpti_ActivityKernel*": {
        "start": 16, "end": 24, "completed": 32, "queued": 120, "submitted": 128,
    },
    "CUpti_ActivityMarker2": {"timestamp": 8},
    "CUpti_ActivityOverhead3": {"start": 24, "end": 32},
    "CUpti_ActivityEnvironment": {"timestamp": 8},
    "CUpti_ActivityUnifiedMemoryCounter*": {"start": 16, "end": 24},
    "CUpti_ActivityCudaEvent*": {"deviceTimestamp": 40},
    "CUpti_ActivitySynchronization*": {"start": 8, "end": 16},
    "CUpti_ActivityMemory4": {"timestamp": 32},
    "CUpti_ActivityMemoryPool*": {"timestamp": 56},
    "CUpti_ActivityGraphTrace2": {"start": 8, "end": 16},
    "CUpti_ActivityJit2": {"start": 16, "end": 24},
}  # fmt: skip

CUPTIS = headers("cupti_activity.h")
CUDAS = [
    directory for directory in headers("cuda.h") if (directory / "cuda.h").stat().st_size > 1000
]


def newest(header: str, pattern: str) -> str:
    """The struct of this name with the highest number at its end."""
    names = re.findall(rf"\}} ({pattern.replace('*', chr(92) + 'd*')});", header)
    return max(names, key=lambda name: int(re.sub(r"\D", "", name.rpartition("y")[2]) or 0))


def struct_text(header: str, name: str) -> str | None:
    found = re.search(rf"typedef struct \w+ \{{[^}}]*\}} {name};", header)
    return found.group() if found else None


def base(call: str) -> str:
    return re.sub(r"_pt[sd][sz]$", "", call)


def assertions(cupti: Path) -> str:
    activity = (cupti / "cupti_activity.h").read_text(errors="replace")
    meta = (cupti / "generated_cuda_meta.h").read_text(errors="replace")
    known = dict(
        re.findall(
            r"CUPTI_DRIVER_TRACE_CBID_(\w+)\s*=\s*(\d+)",
            (cupti / "cupti_driver_cbid.h").read_text(errors="replace"),
        )
    )
    lines = [
        "#include <stdbool.h>",  # which 13.1 uses and does not include
        "#include <stddef.h>",
        "#include <cupti_callbacks.h>",
        "#include <cupti_activity.h>",
        "#include <cupti_pcsampling.h>",
        "#include <cupti_target.h>",
        # 12.6 includes a header of C++ in C
        "".join(
            line + "\n"
            for line in (cupti / "cupti_profiler_host.h").read_text().splitlines()
            if line != "#include <string>"
        ),
        "#include <cupti_range_profiler.h>",
        "#include <cupti_sass_metrics.h>",
        '#include "cupti_abi.h"',
    ]
    parameters = [
        text
        for call in CALLS
        if base(call) in ARGUMENTS or base(call) in ("cuLaunchKernel", "cuLaunchKernelEx")
        if (text := struct_text(meta, f"{call}_params"))
    ]
    lines += parameters

    def check(expression: str) -> None:
        lines.append(f'_Static_assert({expression}, "{expression}");')

    for name, (theirs, fields) in STRUCTS.items():
        struct = newest(activity, theirs) if "*" in theirs else theirs
        body = activity.partition(f"}} {struct};")[0].rpartition("typedef struct")[2]
        for field, members in fields.items():
            member, *more = members.split()
            if field in LATER.get(name, ()) and not re.search(rf"\b{member}\b", body):
                continue
            ours = f"pasta_cupti_{name}"
            check(f"offsetof({ours}, {field}) == offsetof({struct}, {member})")
            if (name, field) not in LARGER:
                size = f"sizeof((({struct} *)0)->{member}) * {1 + len(more)}"
                check(f"sizeof((({ours} *)0)->{field}) == {size}")
    for theirs, members in TIMES.items():
        struct = newest(activity, theirs) if "*" in theirs else theirs
        body = activity.partition(f"}} {struct};")[0].rpartition("typedef struct")[2]
        for member, offset in members.items():
            if re.search(rf"\b{member};", body):  # 12.6 has no times of events
                check(f"offsetof({struct}, {member}) == {offset}")
    for name, every in WHOLE.items():
        for theirs in every:
            check(f"sizeof(pasta_cupti_{name}) == sizeof({theirs})")
    for name, every in ALIKE.items():
        for theirs in every:
            check(f"sizeof(pasta_cupti_{name}) == sizeof({theirs})")
    for name, last in TOLD.items():
        size = f"PASTA_CUPTI_SIZE(pasta_cupti_{name}, {last})"
        check(f"{size} == {STRUCTS[name][0]}_STRUCT_SIZE")
    check("offsetof(pasta_cupti_call, api.context) == offsetof(CUpti_CallbackData, context)")
    check("offsetof(pasta_cupti_call, api.symbol) == offsetof(CUpti_CallbackData, symbolName)")
    check("sizeof(pasta_cupti_attribute) == sizeof(CUlaunchAttribute)")
    for call, number in CALLS.items():
        if call not in known:
            assert number > max(map(int, known.values())) - 2, call  # a later version's
            continue
        assert int(known[call]) == number, call
        text = struct_text(meta, f"{call}_params")
        if text is None:
            continue
        for index, names in enumerate(ARGUMENTS.get(base(call), "").split()):
            (member,) = (each for each in names.split("|") if re.search(rf"\b{each};", text))
            check(f"offsetof({call}_params, {member}) == {8 * index}")
    results = (cupti / "cupti_result.h").read_text(errors="replace")
    for name, theirs in ENUMERATORS.items():
        if name in LATER_ENUMERATORS and not re.search(rf"\b{theirs}\b", results):
            continue
        if re.search(rf"\b{theirs}\b", activity) or not theirs.startswith("CUPTI_ACTIVITY"):
            check(f"(int)PASTA_CUPTI_{name} == (int){theirs}")
    return "\n".join([*lines, "int main(void) { return 0; }", ""])


@pytest.mark.skipif(not CUPTIS, reason="no cupti_activity.h: pip install the dev extra")
@pytest.mark.skipif(not CUDAS, reason="no cuda.h: pip install the dev extra")
@pytest.mark.parametrize("cupti", CUPTIS, ids=str)
def test_declarations_match_the_vendors_headers(cupti: Path, tmp_path: Path) -> None:
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    source = tmp_path / "equal.c"
    source.write_text(assertions(cupti))
    command = [compiler, "-std=gnu11", "-fsyntax-only", "-iquote", str(SOURCES), f"-I{cupti}"]
    done = subprocess.run([*command, f"-I{CUDAS[0]}", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_declaration_is_checked() -> None:
    declared = set(re.findall(r"\bPASTA_CUPTI_([A-Z0-9_]+) =", HEADER)) - OWN
    assert declared == set(ENUMERATORS)
    structs = set(re.findall(r"typedef struct pasta_cupti_(\w+) \{", HEADER))
    assert structs == set(STRUCTS)
    assert {base(call) for call in CALLS} == {*ARGUMENTS, *OTHERS}
    assert not OTHERS & ARGUMENTS.keys()


# ---- real libraries: what works without a GPU ----------------------------------------------------


def libraries() -> list[Path]:
    found = (p for root in toolkits() if root.is_dir() for p in root.rglob("libcupti.so.1[0-9]"))
    return list(dict.fromkeys(path.resolve() for path in found))


#: Two of them in a process do not work: each is looked at in a process of its own.
PROGRAM = """
import ctypes, json, sys
path, symbols, kinds = json.loads(sys.argv[1])
library, version = ctypes.CDLL(path), ctypes.c_uint32()
missing = [symbol for symbol in symbols if not hasattr(library, symbol)]
works = library.cuptiGetVersion(ctypes.byref(version)) == 0 and version.value < 130200
def walks(kind, size):
    buffer = (ctypes.c_uint8 * (3 * size))()
    for number in range(3):
        ctypes.memmove(ctypes.byref(buffer, number * size), kind.to_bytes(4, "little"), 4)
    record, offsets, valid = ctypes.c_void_p(), [], ctypes.c_size_t(len(buffer))
    while library.cuptiActivityGetNextRecord(buffer, valid, ctypes.byref(record)) == 0:
        offsets.append((record.value or 0) - ctypes.addressof(buffer))
    return offsets == [0, size, 2 * size]
sizes = {kind: [s for s in range(32, 320, 8) if walks(kind, s)] for kind in kinds if works}
print(json.dumps([missing, version.value, sizes]))
"""
#: Bytes of the fake library's records, by the first version of the API that has them, and kind.
SIZES = {
    24: {10: 208, 1: 88, 22: 96, 2: 88, 17: 56, 25: 64},
    28: {10: 208, 1: 96, 22: 96, 2: 88, 17: 56, 25: 104},
    130000: {10: 216, 1: 96, 22: 96, 2: 88, 17: 56, 25: 104},
    130100: {10: 224, 1: 96, 22: 96, 2: 88, 17: 56, 25: 104},
}


@pytest.mark.skipif(not libraries(), reason="no libcupti.so: pip install the dev extra")
@pytest.mark.parametrize("path", libraries(), ids=str)
def test_real_libraries(path: Path) -> None:
    """Functions, and lengths of records in the vendor's own walk through a buffer, which versions
    since 13.2 do not do without a driver."""
    symbols = re.findall(r'X\(\w+, "(\w+)"', HEADER)
    assert len(symbols) >= 18
    given = json.dumps([str(path), symbols, list(SIZES[24])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, given], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    missing, version, sizes = json.loads(done.stdout)
    assert missing == []
    if sizes:
        expected = SIZES[max(first for first in SIZES if first <= version)]
        assert sizes == {str(kind): [size] for kind, size in expected.items()}


@pytest.mark.skipif(not libraries(), reason="no libcupti.so: pip install the dev extra")
@pytest.mark.parametrize("path", libraries(), ids=str)
def test_counters_of_real_libraries(path: Path) -> None:
    """Versions up to 13.1 list those of any chip without a driver."""
    try:
        ((chip, found),) = counters(path, "GH100")
    except MissingDependency as error:
        assert re.search("SupportedChips failed with 999|status -11|does not know", error.message)
        return
    listed = {each.name: each.text for each in found}
    assert chip == "GH100" and len(listed) > 3000
    assert "DRAM" in listed["dram__bytes.sum"]
    assert {name for name, unit, _ in FLOP_COUNTERS if unit != "float16 matrix"} <= set(listed)
    assert set(DEFAULT_COUNTERS.split(",")) <= {
        *listed, *(f"{name[:-4]}.avg.pct_of_peak_sustained_active" for name in listed)
    }  # fmt: skip
