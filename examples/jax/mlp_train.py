"""Trains a small MLP with JAX, on generated data.

python mlp_train.py [--steps N] [--width N] [--trace DIRECTORY]
"""

from __future__ import annotations

import argparse
import contextlib

import jax
import jax.numpy as jnp

Parameters = list[tuple[jax.Array, jax.Array]]


def prepare(key: jax.Array, sizes: list[int]) -> Parameters:
    """Weights and biases of each layer."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(key, (before, after)) / before**0.5, jnp.zeros(after))
        for key, before, after in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def mlp(parameters: Parameters, x: jax.Array) -> jax.Array:
    """The network's output for a batch."""
    for number, (weight, bias) in enumerate(parameters):
        with jax.named_scope(f"Dense_{number}"):
            x = x @ weight + bias
            if number < len(parameters) - 1:
                x = jax.nn.relu(x)
    return x


def loss(parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean square of the differences."""
    return jnp.mean((mlp(parameters, x) - y) ** 2)


@jax.jit
def train_step(parameters: Parameters, x: jax.Array, y: jax.Array) -> tuple[Parameters, jax.Array]:
    """Parameters after a step of gradient descent, and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(parameters, x, y)
    return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients), value


def main() -> None:
    """Train and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--trace", help="write jax.profiler's trace of all steps but the first")
    options = parser.parse_args()
    parameters = prepare(jax.random.key(0), [784, options.width, options.width, 10])
    x = jax.random.normal(jax.random.key(1), (256, 784))
    y = jax.nn.one_hot(jax.random.randint(jax.random.key(2), (256,), 0, 10), 10)
    parameters, value = train_step(parameters, x, y)
    losses = [float(value)]
    trace = jax.profiler.trace(options.trace) if options.trace else contextlib.nullcontext()
    with trace:
        for _ in range(options.steps - 1):
            parameters, value = train_step(parameters, x, y)
            losses.append(float(value))
    print(" ".join(f"{each:.5f}" for each in losses))


if __name__ == "__main__":
    main()
