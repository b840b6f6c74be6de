"""Entry point in a program's own interpreter: a thread of libpasta runs `consume`."""


def consume(ring_path: str) -> int:
    """Runs `embedded.consume`. Must not print: stdout and stderr belong to the program."""
    import atexit

    from pasta.runtime import interrupts

    atexit.register(interrupts.restore)  # before imports that evaluate text
    from pasta.runtime import embedded

    return embedded.consume(ring_path, owns_interpreter=False)
