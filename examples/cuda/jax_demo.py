"""JAX: a jitted step, run a few times; XLA may launch it through a CUDA graph."""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp


@jax.jit
def step(w: jax.Array, x: jax.Array) -> jax.Array:
    """One layer and its transpose."""
    return jnp.tanh(x @ w) @ w.T


def main() -> None:
    """Run five steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expect", action="store_true")
    options = parser.parse_args()
    w = jnp.eye(256, dtype=jnp.float32) * 0.5
    x = jnp.ones((256, 256), dtype=jnp.float32)
    for _ in range(5):
        x = step(w, x)
    print(f"jax_demo: {jax.default_backend()} {float(x.sum()).hex()}")
    if options.expect:
        print("kernel_launch.at_least=5")


if __name__ == "__main__":
    main()
