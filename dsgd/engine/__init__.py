"""The compiled part of a run: the loop, the oracle, the clock, and the protocol that validates what
methods return; and the compiled programs, in memory and on disk.
"""
