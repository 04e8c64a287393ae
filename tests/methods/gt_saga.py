"""GT-SAGA: Xin, Khan and Kar, 2022. It draws samples of finite sums: its recursion is in
`tests/algorithms/test_variance_reduction.py`.
"""
