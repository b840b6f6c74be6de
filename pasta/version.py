"""The version of PASTA."""

VERSION = "0.1.0"
