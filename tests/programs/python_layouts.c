/* Whether the layouts of python_objects.c are those of the Python whose headers this is compiled with. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#include "../../shim/core/python_objects.c"

#include "check.h"

typedef struct _PyInterpreterFrame interpreter_frame;

int main(void) {
    const pasta_python_layout *l = pasta_python_layout_of(PY_MINOR_VERSION);
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
    CHECK(FRAME_OWNED_BY_CSTACK == PASTA_PYTHON_OWNED_BY_C && l->is_entry == -1);
#endif
    CHECK(l->previous == offsetof(interpreter_frame, previous) && l->owner == offsetof(interpreter_frame, owner));
    CHECK(FRAME_OWNED_BY_GENERATOR == PASTA_PYTHON_OWNED_BY_GENERATOR);
    CHECK(l->first_line == offsetof(PyCodeObject, co_firstlineno) && l->instructions == offsetof(PyCodeObject, co_code_adaptive));
    CHECK(l->first_traceable == offsetof(PyCodeObject, _co_firsttraceable));
    CHECK(PASTA_PYTHON_CODE_FILE == offsetof(PyCodeObject, co_filename) && PASTA_PYTHON_CODE_NAME == offsetof(PyCodeObject, co_name));
    CHECK(PASTA_PYTHON_CODE_LINES == offsetof(PyCodeObject, co_linetable) && PASTA_PYTHON_TYPE == offsetof(PyObject, ob_type));
    CHECK(PASTA_PYTHON_SIZE == offsetof(PyVarObject, ob_size) && PASTA_PYTHON_SIZE == offsetof(PyASCIIObject, length));
    CHECK(PASTA_PYTHON_TEXT_HASH == offsetof(PyASCIIObject, hash) && PASTA_PYTHON_TEXT_STATE == offsetof(PyASCIIObject, state));
    CHECK(l->ascii == sizeof(PyASCIIObject) && l->compact == sizeof(PyCompactUnicodeObject));
    CHECK(PASTA_PYTHON_BYTES_DATA == offsetof(PyBytesObject, ob_sval));
    CHECK(l->interpreters == offsetof(_PyRuntimeState, interpreters.head));
    CHECK(l->threads == offsetof(PyInterpreterState, threads.head));
    CHECK(l->next_thread == offsetof(PyThreadState, next) && l->native_id == offsetof(PyThreadState, native_thread_id));
    return 0;
}
