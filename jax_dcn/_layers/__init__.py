"""What the Linen and the NNX layers share."""
