"""A run in the Trace Event Format, as torch.profiler writes it: one line per event."""
