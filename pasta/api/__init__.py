"""The Python API for programs and notebooks; `import pasta` imports it on first use."""
