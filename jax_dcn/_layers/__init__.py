"""The code that the Linen and the NNX layers share."""
