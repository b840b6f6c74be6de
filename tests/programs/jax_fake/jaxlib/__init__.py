"""Takes jaxlib's place."""
