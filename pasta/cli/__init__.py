"""The commands `pasta` and `pasta-preload`."""
