"""A network trained with JAX, whose optimizer is applied parameter by parameter outside of jit.

python jax_mlp.py [--changed]      changed: jit has the whole step, and reuses its buffers
"""

from __future__ import annotations

import argparse
import sys
import time

import jax
import jax.numpy as jnp

LAYERS, WIDTH, BATCH = 24, 512, 256

Parameters = list[tuple[jax.Array, jax.Array]]


def loss(parameters: Parameters, x: jax.Array) -> jax.Array:
    """Mean square of the difference of the output to the input."""
    y = x
    for weight, bias in parameters:
        y = jnp.tanh(y @ weight + bias)
    return jnp.mean((y - x) ** 2)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changed", action="store_true", help="with the change")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    keys = jax.random.split(jax.random.PRNGKey(0), LAYERS)
    parameters = [
        (jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5, jnp.zeros(WIDTH)) for key in keys
    ]
    momenta = jax.tree.map(jnp.zeros_like, parameters)
    x = jax.random.normal(keys[0], (BATCH, WIDTH))
    gradients = jax.jit(jax.value_and_grad(loss))

    def step(
        parameters: Parameters, momenta: Parameters
    ) -> tuple[jax.Array, Parameters, Parameters]:
        value, found = gradients(parameters, x)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, found)
        return value, jax.tree.map(lambda p, m: p - 0.01 * m, parameters, momenta), momenta

    if options.changed:
        step = jax.jit(step, donate_argnums=(0, 1))
    for number in range(3 + options.steps):
        if number == 3:
            jax.block_until_ready(parameters)
            begin = time.perf_counter()
        value, parameters, momenta = step(parameters, momenta)
    jax.block_until_ready(parameters)
    mean = (time.perf_counter() - begin) / options.steps
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    print(f"result {float(value):.3e}")
    print(f"mean_step_ms={1e3 * mean:.4f} peak_mib={peak / 2**20:.0f}", file=sys.stderr)


if __name__ == "__main__":
    main()
