"""Imports modules at their first use: `--help` and `list` need not wait a second for imports."""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType


def lazy(name: str) -> ModuleType:
    """The module of this name, executed at the first access to one of its attributes.

    Source: the recipe in Python's documentation of importlib.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    package, _, child = name.rpartition(".")
    if package:
        setattr(sys.modules[package], child, module)  # as an import does
    spec.loader.exec_module(module)
    return module
