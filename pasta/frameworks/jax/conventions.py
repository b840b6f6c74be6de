"""Names of JAX's own code that have a known meaning."""

from __future__ import annotations

from pasta.processors.conventions import Conventions

CONVENTIONS = Conventions(own_files=(r"/(site|dist)-packages/(jax|jaxlib|flax|optax)/",))
