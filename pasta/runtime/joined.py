"""Where libpasta enters a program's own interpreter: a thread of its own runs `consume`."""


def consume(ring_path: str) -> int:
    """As `embedded.consume`. Nothing may be printed: stdout and stderr are the program's."""
    import atexit

    from pasta.runtime import interrupts

    atexit.register(interrupts.restore)  # before imports that evaluate text
    from pasta.runtime import embedded

    return embedded.consume(ring_path, owns_interpreter=False)
