"""Floating-point operations of PyTorch's operators by the shapes of their tensors.

A multiplication with its addition is two. Only operators that compute by themselves have a formula,
not those that call one of these: each operation is counted once.
"""

from __future__ import annotations

from math import prod

from pasta.processors.conventions import Formula, Shapes


def _matrix_product(inputs: Shapes, outputs: Shapes) -> int:
    """(m, k) times (k, n), or batches of them; the last two tensors of the operator."""
    left, right = inputs[-2:]
    return 2 * prod(left) * right[-1]


def _scaled_matrix_product(inputs: Shapes, outputs: Shapes) -> int:
    """(m, k) times (k, n), then scales."""
    return _matrix_product(inputs[:2], outputs)


def _convolution(inputs: Shapes, outputs: Shapes) -> int:
    """Input (n, c, ...), weight (out, c / groups, ...), or (c, out / groups, ...) if transposed."""
    input, weight = inputs[:2]
    (output,) = outputs[:1]
    is_transposed = weight[0] == input[1] and weight[0] != output[1]
    return 2 * prod(input if is_transposed else output) * prod(weight[1:])


def _convolution_backward(inputs: Shapes, outputs: Shapes) -> int:
    """Gradient of the output, input, weight; a product for each gradient of input and weight."""
    gradient, input, weight = inputs[:3]
    is_transposed = weight[0] == input[1] and weight[0] != gradient[1]
    each = 2 * prod(input if is_transposed else gradient) * prod(weight[1:])
    return each * sum(shape in (input, weight) for shape in outputs)


def _attention(inputs: Shapes, outputs: Shapes) -> int:
    """Query (..., s, d), key (..., t, d), value (..., t, e): two products, without a mask."""
    query, key, value = inputs[:3]
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(inputs: Shapes, outputs: Shapes) -> int:
    """Gradient of the output, then as forward: five products, one of them recomputed."""
    query, key, value = inputs[1:4]
    return 2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


_ATTENTION = ("flash", "efficient", "cudnn", "fused")
#: Formulas by operator. Raises IndexError or ValueError for other shapes than documented.
FORMULAS: tuple[tuple[str, Formula], ...] = (
    *((f"aten::{name}", _matrix_product) for name in ("mm", "addmm", "bmm", "baddbmm")),
    ("aten::_scaled_mm", _scaled_matrix_product),
    ("aten::convolution", _convolution),
    ("aten::convolution_backward", _convolution_backward),
    *((f"aten::_scaled_dot_product_{name}_attention", _attention) for name in _ATTENTION),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", _attention),
    *(
        (f"aten::_scaled_dot_product_{name}_attention_backward", _attention_backward)
        for name in _ATTENTION
    ),
    ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
)
