"""Asynchronous methods, in which no worker waits for another, with their arrival times and given
delays.
"""
