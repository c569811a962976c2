"""Counts of machine code: its instructions, how often they run, and what GPUs do per clock."""
