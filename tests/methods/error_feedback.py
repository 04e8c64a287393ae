"""Any memories; EC-SGD, EF21, DIANA and EF-BV are its cases: tests/algorithms/test_memories.py."""
