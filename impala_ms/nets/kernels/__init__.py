"""Convolutions, pooling and an LSTM in C, for the CPU: each ``.c`` file begins with why.

``build.py`` compiles and loads them, ``operators.py`` makes them operators of MindSpore.
"""
