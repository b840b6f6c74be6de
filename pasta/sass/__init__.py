"""Reading GPU code: disassembly, kinds of instructions."""
