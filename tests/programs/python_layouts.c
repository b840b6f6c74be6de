/* Whether the layouts of python_frames.c are those of the Python whose headers this is compiled with. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_frame.h>

#include "../../shim/core/python_frames.c"

#include "check.h"

bool pasta_is_sandboxed(void) { return false; }
uint32_t pasta_intern(const char *text, size_t length) { return text ? (uint32_t)length : 0; }
uint64_t pasta_hash(const void *bytes, size_t length) { return bytes ? length : 0; }

typedef struct _PyInterpreterFrame interpreter_frame;

int main(void) {
    const layout *l = &layouts[PY_MINOR_VERSION];
#if PY_VERSION_HEX >= 0x030d0000
    CHECK(l->thread_frame == offsetof(PyThreadState, current_frame) && l->chain_frame == -1);
    CHECK(l->code == offsetof(interpreter_frame, f_executable));
    CHECK(l->instruction == offsetof(interpreter_frame, instr_ptr) && l->is_entry == -1);
#else
    CHECK(l->thread_frame == offsetof(PyThreadState, cframe) && l->chain_frame == offsetof(_PyCFrame, current_frame));
    CHECK(l->code == offsetof(interpreter_frame, f_code) && l->instruction == offsetof(interpreter_frame, prev_instr));
#endif
#if PY_VERSION_HEX < 0x030c0000
    CHECK(l->is_entry == offsetof(interpreter_frame, is_entry));
#else
    CHECK(FRAME_OWNED_BY_CSTACK == OWNED_BY_C && l->is_entry == -1);
#endif
    CHECK(l->previous == offsetof(interpreter_frame, previous) && l->owner == offsetof(interpreter_frame, owner));
    CHECK(FRAME_OWNED_BY_GENERATOR == OWNED_BY_GENERATOR);
    CHECK(l->first_line == offsetof(PyCodeObject, co_firstlineno) && l->instructions == offsetof(PyCodeObject, co_code_adaptive));
    CHECK(l->first_traceable == offsetof(PyCodeObject, _co_firsttraceable));
    CHECK(CODE_FILE == offsetof(PyCodeObject, co_filename) && CODE_NAME == offsetof(PyCodeObject, co_name));
    CHECK(CODE_LINES == offsetof(PyCodeObject, co_linetable) && OBJECT_TYPE == offsetof(PyObject, ob_type));
    CHECK(SIZE == offsetof(PyVarObject, ob_size) && SIZE == offsetof(PyASCIIObject, length));
    CHECK(TEXT_HASH == offsetof(PyASCIIObject, hash) && TEXT_STATE == offsetof(PyASCIIObject, state));
    CHECK(l->ascii == sizeof(PyASCIIObject) && l->compact == sizeof(PyCompactUnicodeObject));
    CHECK(BYTES_DATA == offsetof(PyBytesObject, ob_sval));
    return 0;
}
