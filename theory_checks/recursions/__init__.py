"""The methods as printed in their papers, as recursions in numpy with which the project's methods
are compared.
"""
