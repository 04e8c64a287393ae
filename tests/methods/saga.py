"""SAGA: Defazio, Bach and Lacoste-Julien, 2014. Its recursion, which draws samples, is in
`tests/algorithms/test_variance_reduction.py`.
"""
