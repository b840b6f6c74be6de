"""Reports of runs: text, HTML, and exports for other programs."""
