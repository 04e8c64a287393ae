"""Asynchronous methods, in which no worker waits for another, with their arrival times and given
delays.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["on_ray"])
