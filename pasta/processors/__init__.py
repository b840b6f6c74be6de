"""Vectorised work between the ring and the tools: filter, correlate, look up, aggregate."""
