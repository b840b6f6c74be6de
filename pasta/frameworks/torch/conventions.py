"""Names of PyTorch's own code that have a known meaning."""

from __future__ import annotations

from pasta.frameworks.torch.flops import FORMULAS
from pasta.processors.conventions import Conventions

CONVENTIONS = Conventions(
    own_files=(r"/(site|dist)-packages/torch/", r"/torch/(nn|_\w+|optim|autograd)/"),
    library_files=(r"/torch_\w+/__init__\.py$",),  # packages of device backends: torch_DEVICE
    loader_files=(r"/torch/utils/data/",),
    loader_waits=("_try_get_data",),
    backward_waits=("_engine_run_backward",),
    optimizer_steps=("Optimizer.step#",),
    # sums what is broadcast, such as the gradient of a bias, after the operator of the gradient
    backward=("autograd::engine::evaluate_function: ",),
    gradient_sums=("torch::autograd::AccumulateGrad",),
    communication=("c10d::",),
    allocators=("aten::empty",),
    moves=(("aten::copy_", "aten::_to_copy"),),
    flops=FORMULAS,
    types=(
        ("Double", "float64"),
        ("Float", "float32"),
        ("Half", "float16"),
        ("BFloat16", "bfloat16"),
        ("Float8_e4m3fn", "float8"),
        ("Float8_e5m2", "float8"),
    ),
    item_sizes=(
        *dict.fromkeys(("Bool", "Byte", "Char", "QInt8", "QUInt8"), 1).items(),
        *dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2"), 1).items(),
        *dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2).items(),
        *dict.fromkeys(("Int", "Float", "UInt32", "QInt32", "ComplexHalf"), 4).items(),
        *dict.fromkeys(("Long", "Double", "UInt64", "ComplexFloat"), 8).items(),
        ("ComplexDouble", 16),
    ),
)
