"""Messages as data: exact counts of bits, packed codes, and the traffic of a compiled program."""

from dsgd.wire import codecs, counts

__all__ = ["codecs", "counts"]
