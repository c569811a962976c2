"""The machinery that makes an operator a JAX primitive."""
