"""What the cases of several operators share."""

import functools

import numpy as np

import jax_dcn


class Case:
    """A problem of a function of the package, of the name `function`, which the module `reference` has, too.

    keywords: the static arguments. result: the shape of the result without leading dimensions.
    """

    def with_backend(self, backend=None, **options):
        return functools.partial(getattr(jax_dcn, self.function), **self.keywords, backend=backend, **options)

    def cotangent(self, seed=9, lead=()):
        return np.random.default_rng(seed).normal(size=(*lead, *self.result))

    def problems(self):
        """Pairs of a cotangent and operands, which are compared with the numpy reference."""
        return [(self.cotangent(), self.operands())]

    def expected(self, cotangent, operands):
        """The result and the gradients, by the numpy reference."""
        out, *gradients = getattr(self.reference, self.function)(*operands, cotangent, **self.keywords)
        return out, type(operands)(*gradients)
