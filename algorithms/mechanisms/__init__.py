"""Mechanisms that several methods share."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["delays", "memories", "three_points"])
