"""Three training steps on each of two threads; two kernels of each instruction."""

import sys
import threading

import jax
from accelerate import launch

STEP = jax.Range(
    "XlaModule:#prefix=jit(train_step),hlo_module=jit_train_step,program_id=7#",
    "\n/home/me/train.py:40:4[&lt;module&gt;]\n/home/me/train.py:31:8[fit]\n",
)
INSTRUCTIONS = [
    jax.Range(
        "Thunk:#name=jvp(Dense_0)/dot_general,hlo_op=gemm_fusion_dot.5,unique_hlo_op_id=11#",
        "\n- /home/me/train.py:16:11[train_step]\n-- /home/me/model.py:9:16[mlp] dot_general\n"
        "-- /home/me/model.py:10:16[mlp] add\n",
        "gemm_fusion_dot.5 = f32[16,64]{1,0} fusion(x, w), kind=kCustom",
    ),
    jax.Range(
        "Thunk:#name=,hlo_op=loop_select_fusion,unique_hlo_op_id=12#",
        "\n",
        "loop_select_fusion = f32[16,64]{1,0} fusion(x), kind=kLoop, metadata={"
        'op_name="jit(train_step)/transpose(jvp(Dense_1))/select_n" stack_frame_id=6}, '
        'backend_config={"metadata":{"op_name":"none"}}',
    ),
    jax.Range("Thunk:#hlo_op=copy.2,unique_hlo_op_id=13#"),
]


def steps() -> None:
    for _ in range(3):
        with STEP as level:
            assert level == 0, level
            for each in INSTRUCTIONS:
                with each as level:
                    assert level == 1, level
                    launch(2)


if __name__ == "__main__":
    with jax.Text("XlaCompile:#module=jit_train_step,program_id=7#"):
        pass
    steps()
    other = threading.Thread(target=steps)
    other.start()
    other.join()
    print("trained", file=sys.stdout)
