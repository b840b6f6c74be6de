"""As JAX's."""
