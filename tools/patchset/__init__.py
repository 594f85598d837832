"""The library behind the command lines: releases, series, trees, transactions, wheels.

It prints nothing, never exits, holds no global state and never imports vllm or torch. Each module
is about one noun; everything expected to go wrong is a ``PatchsetError`` (see ``errors``).
"""
