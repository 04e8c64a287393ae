"""What crosses the wire: exact counts of bits, packed codes, and what a compiled program really
sends.
"""
