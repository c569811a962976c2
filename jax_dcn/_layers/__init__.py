"""The layers without their parameters: what Linen and NNX share.

Each class has the options of a layer with their documentation, their checks, the layers inside it (`_sublayers`) and
its computation (`__call__`). The classes in `linen` and `nnx` inherit from it, and create and hold the parameters.
"""
