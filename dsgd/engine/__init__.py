"""What is compiled: the loop, the oracle, the clock, the protocol that methods are held to; and the
programs, in memory and on disk.
"""
