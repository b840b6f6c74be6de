/* Our declarations of NVTX against the vendor's headers; compiled, never run. */
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#if __has_include(<nvtx3/nvToolsExtPayload.h>)
#include <nvtx3/nvToolsExtPayload.h>
#endif

#include "../../shim/annotations/nvtx_abi.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
#define SAME_FIELD(ours, our_field, theirs, their_field)                                                       \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&                               \
                       sizeof(((ours *)0)->our_field) == sizeof(((theirs *)0)->their_field),                   \
                   #theirs "." #their_field)

SAME(PASTA_NVTX_TABLE_CALLBACKS, NVTX_ETID_CALLBACKS);
SAME(PASTA_NVTX_TABLE_VERSION, NVTX_ETID_VERSIONINFO);
SAME(PASTA_NVTX_CORE, NVTX_CB_MODULE_CORE);
SAME(PASTA_NVTX_CORE2, NVTX_CB_MODULE_CORE2);

SAME(PASTA_NVTX_MARK_EX, NVTX_CBID_CORE_MarkEx);
SAME(PASTA_NVTX_MARK_A, NVTX_CBID_CORE_MarkA);
SAME(PASTA_NVTX_MARK_W, NVTX_CBID_CORE_MarkW);
SAME(PASTA_NVTX_RANGE_START_EX, NVTX_CBID_CORE_RangeStartEx);
SAME(PASTA_NVTX_RANGE_START_A, NVTX_CBID_CORE_RangeStartA);
SAME(PASTA_NVTX_RANGE_START_W, NVTX_CBID_CORE_RangeStartW);
SAME(PASTA_NVTX_RANGE_END, NVTX_CBID_CORE_RangeEnd);
SAME(PASTA_NVTX_RANGE_PUSH_EX, NVTX_CBID_CORE_RangePushEx);
SAME(PASTA_NVTX_RANGE_PUSH_A, NVTX_CBID_CORE_RangePushA);
SAME(PASTA_NVTX_RANGE_PUSH_W, NVTX_CBID_CORE_RangePushW);
SAME(PASTA_NVTX_RANGE_POP, NVTX_CBID_CORE_RangePop);

SAME(PASTA_NVTX_DOMAIN_MARK_EX, NVTX_CBID_CORE2_DomainMarkEx);
SAME(PASTA_NVTX_DOMAIN_RANGE_START_EX, NVTX_CBID_CORE2_DomainRangeStartEx);
SAME(PASTA_NVTX_DOMAIN_RANGE_END, NVTX_CBID_CORE2_DomainRangeEnd);
SAME(PASTA_NVTX_DOMAIN_RANGE_PUSH_EX, NVTX_CBID_CORE2_DomainRangePushEx);
SAME(PASTA_NVTX_DOMAIN_RANGE_POP, NVTX_CBID_CORE2_DomainRangePop);
SAME(PASTA_NVTX_DOMAIN_REGISTER_STRING_A, NVTX_CBID_CORE2_DomainRegisterStringA);
SAME(PASTA_NVTX_DOMAIN_REGISTER_STRING_W, NVTX_CBID_CORE2_DomainRegisterStringW);
SAME(PASTA_NVTX_DOMAIN_CREATE_A, NVTX_CBID_CORE2_DomainCreateA);
SAME(PASTA_NVTX_DOMAIN_CREATE_W, NVTX_CBID_CORE2_DomainCreateW);

SAME(PASTA_NVTX_MESSAGE_ASCII, NVTX_MESSAGE_TYPE_ASCII);
SAME(PASTA_NVTX_MESSAGE_UNICODE, NVTX_MESSAGE_TYPE_UNICODE);
SAME(PASTA_NVTX_MESSAGE_REGISTERED, NVTX_MESSAGE_TYPE_REGISTERED);
SAME(PASTA_NVTX_COLOR_ARGB, NVTX_COLOR_ARGB);
SAME(PASTA_NVTX_NOT_TRACKED, NVTX_NO_PUSH_POP_TRACKING);

SAME(sizeof(pasta_nvtx_attributes), sizeof(nvtxEventAttributes_t));
SAME_FIELD(pasta_nvtx_attributes, version, nvtxEventAttributes_t, version);
SAME_FIELD(pasta_nvtx_attributes, size, nvtxEventAttributes_t, size);
SAME_FIELD(pasta_nvtx_attributes, category, nvtxEventAttributes_t, category);
SAME_FIELD(pasta_nvtx_attributes, color_type, nvtxEventAttributes_t, colorType);
SAME_FIELD(pasta_nvtx_attributes, color, nvtxEventAttributes_t, color);
SAME_FIELD(pasta_nvtx_attributes, payload_type, nvtxEventAttributes_t, payloadType);
SAME_FIELD(pasta_nvtx_attributes, payload, nvtxEventAttributes_t, payload);
SAME_FIELD(pasta_nvtx_attributes, message_type, nvtxEventAttributes_t, messageType);
SAME_FIELD(pasta_nvtx_attributes, message, nvtxEventAttributes_t, message);

SAME(sizeof(pasta_nvtx_callbacks), sizeof(NvtxExportTableCallbacks));
SAME_FIELD(pasta_nvtx_callbacks, bytes, NvtxExportTableCallbacks, struct_size);
SAME_FIELD(pasta_nvtx_callbacks, module_table, NvtxExportTableCallbacks, GetModuleFunctionTable);
SAME(sizeof(pasta_nvtx_version), sizeof(NvtxExportTableVersionInfo));
SAME_FIELD(pasta_nvtx_version, bytes, NvtxExportTableVersionInfo, struct_size);
SAME_FIELD(pasta_nvtx_version, version, NvtxExportTableVersionInfo, version);
SAME_FIELD(pasta_nvtx_version, set_injection_version, NvtxExportTableVersionInfo, SetInjectionNvtxVersion);
SAME(sizeof(nvtxRangeId_t), sizeof(uint64_t));

#ifdef NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES
SAME(PASTA_NVTX_EXTENSION_PAYLOAD, NVTX_EXT_PAYLOAD_MODULEID);
SAME(PASTA_NVTX_PAYLOAD_SCHEMA_REGISTER, NVTX3EXT_CBID_nvtxPayloadSchemaRegister);
SAME(PASTA_NVTX_PAYLOAD_EXTENDED, NVTX_PAYLOAD_TYPE_EXT);
SAME(PASTA_NVTX_ENTRY_REGISTERED, NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE);
SAME(PASTA_NVTX_SCHEMA_HAS_ENTRIES, NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES);
SAME(PASTA_NVTX_SCHEMA_HAS_COUNT, NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES);
SAME(PASTA_NVTX_SCHEMA_HAS_ID, NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID);
_Static_assert(PASTA_NVTX_SCHEMA_DYNAMIC == NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START, "dynamic ids");
SAME_FIELD(pasta_nvtx_attributes, reserved, nvtxEventAttributes_t, reserved0);

SAME(sizeof(pasta_nvtx_entry), sizeof(nvtxPayloadSchemaEntry_t));
SAME_FIELD(pasta_nvtx_entry, type, nvtxPayloadSchemaEntry_t, type);
SAME_FIELD(pasta_nvtx_entry, name, nvtxPayloadSchemaEntry_t, name);
SAME_FIELD(pasta_nvtx_entry, offset, nvtxPayloadSchemaEntry_t, offset);
SAME_FIELD(pasta_nvtx_schema, fields, nvtxPayloadSchemaAttr_t, fieldMask);
SAME_FIELD(pasta_nvtx_schema, entries, nvtxPayloadSchemaAttr_t, entries);
SAME_FIELD(pasta_nvtx_schema, count, nvtxPayloadSchemaAttr_t, numEntries);
SAME_FIELD(pasta_nvtx_schema, id, nvtxPayloadSchemaAttr_t, schemaId);
SAME(sizeof(pasta_nvtx_payload), sizeof(nvtxPayloadData_t));
SAME_FIELD(pasta_nvtx_payload, schema, nvtxPayloadData_t, schemaId);
SAME_FIELD(pasta_nvtx_payload, size, nvtxPayloadData_t, size);
SAME_FIELD(pasta_nvtx_payload, data, nvtxPayloadData_t, payload);
#endif
