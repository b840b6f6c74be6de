"""Run directories: layout, writing, validated reading, merging and comparison."""
