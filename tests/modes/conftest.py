"""The tiny pair for every test of a mode."""

from tests.modes.tiny import compiled_once, pair_files, tiny  # noqa: F401
